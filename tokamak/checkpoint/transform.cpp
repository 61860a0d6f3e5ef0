#include "tokamak/checkpoint/transform.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "tokamak/checkpoint/formats/convert_elements.h"
#include "tokamak/checkpoint/formats/outside_name.h"
#include "tokamak/core/error.h"

namespace tokamak {
namespace {

int64_t row_elements(const TensorSource& tensor) {
  int64_t count = 1;
  for (size_t i = 1; i < tensor.dims.size(); ++i) count *= tensor.dims[i];
  return count;
}

// Sets out[i] = column[i * stride] for elements of `width` bytes.
void gather(const std::byte* column, int64_t count, int64_t stride, int64_t width, std::byte* out) {
  const auto copy = [&]<class T>(T) {
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(out + i * width, column + i * stride * width, sizeof(T));
    }
  };
  if (width == 4) return copy(uint32_t{});
  if (width == 2) return copy(uint16_t{});
  if (width == 8) return copy(uint64_t{});
  copy(uint8_t{});
}

// Reads elements [first, first + out) of the transpose of `in`, which is [rows, columns]. It reads
// a strip of rows at a time, so that each write fills a cache line rather than one element.
void read_transposed(const TensorSource& in, int64_t first, std::span<std::byte> out) {
  constexpr int64_t kStrip = 32;
  const int64_t rows = in.dims[0];
  const int64_t columns = in.dims[1];
  const int64_t width = size_of(in.dtype);
  const int64_t end = first + std::ssize(out) / width;
  const int64_t top = first / rows;
  const int64_t height = (end + rows - 1) / rows - top;
  std::vector<std::byte> strip(kStrip * height * width);
  for (int64_t r = 0; r < rows; r += kStrip) {
    const int64_t last = std::min(r + kStrip, rows);
    for (int64_t i = r; i < last; ++i) {
      in.read(i * columns + top,
              std::span(strip).subspan((i - r) * height * width, height * width));
    }
    for (int64_t c = 0; c < height; ++c) {
      const int64_t row_at = (top + c) * rows;
      const int64_t low = std::max(row_at + r, first);
      const int64_t high = std::min(row_at + last, end);
      if (low >= high) continue;
      gather(strip.data() + ((low - row_at - r) * height + c) * width, high - low, height, width,
             out.data() + (low - first) * width);
    }
  }
}

// Returns a source whose row r is row `order(r)` of `in`.
TensorSource reordered(const TensorSource& in, std::function<int64_t(int64_t)> order) {
  TensorSource out = in;
  const int64_t columns = row_elements(in);
  const int64_t width = size_of(in.dtype);
  out.read = [in, columns, width, order = std::move(order)](int64_t first,
                                                            std::span<std::byte> bytes) {
    while (!bytes.empty()) {
      const int64_t column = first % columns;
      const int64_t count = std::min(columns - column, std::ssize(bytes) / width);
      const auto part = static_cast<size_t>(count * width);
      in.read(order(first / columns) * columns + column, bytes.first(part));
      bytes = bytes.subspan(part);
      first += count;
    }
  };
  return out;
}

int64_t half_head(const TensorSource& tensor, int64_t num_heads) {
  const int64_t rows = tensor.dims.empty() ? 0 : tensor.dims[0];
  TOK_REQUIRE(num_heads > 0 && rows > 0 && rows % (2 * num_heads) == 0,
              "tensor {}: {} are not {} heads of even size", shown(tensor.name),
              to_string(tensor.type()), num_heads);
  return rows / num_heads / 2;
}

}  // namespace

TensorSource renamed(TensorSource tensor, std::string name) {
  tensor.name = std::move(name);
  return tensor;
}

TensorSource cast(const TensorSource& tensor, DType dtype) {
  if (dtype == tensor.dtype) return tensor;
  TOK_REQUIRE(can_convert(dtype, tensor.dtype), "tensor {}: cannot convert {} to {}",
              shown(tensor.name), name_of(tensor.dtype), name_of(dtype));
  TensorSource out = tensor;
  out.dtype = dtype;
  out.read = [tensor, dtype](int64_t first, std::span<std::byte> bytes) {
    const int64_t count = std::ssize(bytes) / size_of(dtype);
    std::vector<std::byte> stored(count * size_of(tensor.dtype));
    tensor.read(first, stored);
    convert_elements(dtype, bytes, tensor.dtype, stored);
  };
  return out;
}

TensorSource transposed(const TensorSource& tensor) {
  TOK_CHECK(tensor.dims.size() == 2, "{}", tensor.name);
  TensorSource out = tensor;
  std::swap(out.dims[0], out.dims[1]);
  out.read = [tensor](int64_t first, std::span<std::byte> bytes) {
    if (!bytes.empty()) read_transposed(tensor, first, bytes);
  };
  return out;
}

TensorSource rows_of(const TensorSource& tensor, int64_t first, int64_t count) {
  TOK_CHECK(!tensor.dims.empty() && first >= 0 && count >= 0 && first + count <= tensor.dims[0],
            "{}", tensor.name);
  TensorSource out = tensor;
  out.dims[0] = count;
  const int64_t skipped = first * row_elements(tensor);
  out.read = [tensor, skipped](int64_t from, std::span<std::byte> bytes) {
    tensor.read(from + skipped, bytes);
  };
  return out;
}

TensorSource neighbours_to_halves(const TensorSource& tensor, int64_t num_heads) {
  const int64_t half = half_head(tensor, num_heads);
  return reordered(tensor, [half](int64_t row) {
    const int64_t in_head = row % (2 * half);
    return row - in_head + 2 * (in_head % half) + in_head / half;
  });
}

}  // namespace tokamak
