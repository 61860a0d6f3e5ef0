#include "tokamak/checkpoint/tensor_source.h"

#include <algorithm>
#include <cstring>

#include "tokamak/core/error.h"

namespace tokamak {

TensorSource source_of(const TensorView& view) {
  const int64_t width = size_of(view.dtype);
  const auto read = [data = view.data, width](int64_t first, std::span<std::byte> out) {
    const auto begin = static_cast<size_t>(first * width);
    TOK_CHECK(begin <= data.size() && out.size() <= data.size() - begin);
    if (!out.empty()) std::memcpy(out.data(), data.data() + begin, out.size());
  };
  return {.name = view.name, .dtype = view.dtype, .dims = view.dims, .read = read};
}

void stream(const TensorSource& tensor,
            const std::function<void(std::span<const std::byte>)>& sink) {
  const int64_t width = size_of(tensor.dtype);
  const int64_t total = tensor.type().numel();
  const int64_t step = kStreamBytes / width;
  std::vector<std::byte> buffer(std::min(step, total) * width);
  for (int64_t first = 0; first < total; first += step) {
    const auto bytes = static_cast<size_t>(std::min(step, total - first) * width);
    const auto out = std::span(buffer).first(bytes);
    tensor.read(first, out);
    sink(out);
  }
}

std::vector<std::byte> read_all(const TensorSource& tensor) {
  std::vector<std::byte> bytes(tensor.type().bytes());
  if (!bytes.empty()) tensor.read(0, bytes);
  return bytes;
}

std::optional<int64_t> checked_bytes(DType dtype, const Dims& dims) {
  int64_t bytes = size_of(dtype);
  for (const int64_t extent : dims) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  }
  return bytes;
}

}  // namespace tokamak
