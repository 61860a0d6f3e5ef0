// The bytes of a shard file before it is written: a safetensors header, and tensors that lie
// elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tokamak/checkpoint/formats/safetensors.h"
#include "tokamak/checkpoint/tensor_source.h"

namespace tokamak {

class ShardContents {
 public:
  explicit ShardContents(std::vector<TensorSource> tensors);

  int64_t bytes() const { return layout_.file_bytes; }

  /// The first byte of a tensor in the file, by its index among those given.
  int64_t offset(size_t tensor) const { return layout_.offsets[tensor]; }

  /// Fills `out` with the file's bytes from `first` on; any threads may read at once if the sources
  /// allow it. REQUIRES: `first` and the end of `out` are multiples of 8 or the file's end.
  void read(int64_t first, std::span<std::byte> out) const;

 private:
  std::vector<TensorSource> tensors_;
  SafetensorsLayout layout_;
  /// The first byte of each tensor that has any, in their order in the file, and its index.
  std::vector<std::pair<int64_t, size_t>> begins_;
};

}  // namespace tokamak
