// A tensor that is read piece by piece, so that a model is converted or written without ever being
// in memory as a whole. Every importer yields these and every writer takes them.
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

/// A named tensor whose row-major little-endian bytes lie in memory that someone else owns (a
/// mapped file, mostly). `data` may lie at any alignment.
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
  /// Fills `out` with the elements `first`, `first` + 1, ... in row-major order. REQUIRES: whole
  /// elements inside the tensor.
  std::function<void(int64_t first, std::span<std::byte> out)> read;

  TensorType type() const { return {.dtype = dtype, .dims = dims}; }
};

/// Bytes that one step of a streaming copy holds in memory.
inline constexpr int64_t kStreamBytes = int64_t{4} << 20;

/// Reads from memory that must outlive the source.
TensorSource source_of(const TensorView& view);

/// Passes the whole tensor to `sink` in order, at most kStreamBytes at a time.
void stream(const TensorSource& tensor,
            const std::function<void(std::span<const std::byte>)>& sink);

/// The whole tensor in memory.
std::vector<std::byte> read_all(const TensorSource& tensor);

/// dims times the size of an element, or nothing if that overflows. REQUIRES: no negative extent.
std::optional<int64_t> checked_bytes(DType dtype, const Dims& dims);

}  // namespace tokamak
