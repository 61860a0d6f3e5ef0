// A tensor that is read piece by piece, so that a model is converted or written without ever being
// in memory as a whole. Every importer returns such tensors and every writer takes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokamak/core/dtype.h"
#include "tokamak/core/tensor_type.h"

namespace tokamak {

/// A named tensor whose row-major little-endian bytes lie in memory that someone else owns (mostly
/// a mapped file). `data` may have any alignment.
struct TensorView {
  std::string name;
  DType dtype = DType::kF32;
  Dims dims;
  std::span<const std::byte> data;
};

/// A named tensor that can be read from any element on.
struct TensorSource {
  std::string name;
  DType dtype = DType::kF32;
  Dims dims;
  /// Fills `out` with the elements `first`, `first` + 1, ... in row-major order. REQUIRES: `out`
  /// holds whole elements inside the tensor.
  std::function<void(int64_t first, std::span<std::byte> out)> read;

  TensorType type() const { return {.dtype = dtype, .dims = dims}; }
};

/// Bytes held in memory per step of a streaming copy.
inline constexpr int64_t kStreamBytes = int64_t{4} << 20;

/// Reads from memory that must outlive the source.
TensorSource source_of(const TensorView& view);

/// Passes the whole tensor to `sink` in order, at most kStreamBytes at a time.
void stream(const TensorSource& tensor,
            const std::function<void(std::span<const std::byte>)>& sink);

/// Reads the whole tensor into memory.
std::vector<std::byte> read_all(const TensorSource& tensor);

/// Returns the bytes of a tensor, or nothing if they overflow. REQUIRES: no extent is negative.
std::optional<int64_t> checked_bytes(DType dtype, const Dims& dims);

}  // namespace tokamak
