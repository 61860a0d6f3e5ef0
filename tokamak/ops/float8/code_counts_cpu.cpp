#include <bit>
#include <cstring>

#include "tokamak/core/float8.h"
#include "tokamak/core/mx.h"
#include "tokamak/core/nvfp4.h"
#include "tokamak/ops/float8/code_counts.h"
#include "tokamak/ops/float8/values_cpu.h"

namespace tokamak::cpu {
namespace {

struct CountedCodes {
  int64_t rows, columns;
  ScaleGrid grid;

  int64_t scale_at(int64_t row, int64_t column) const {
    return scale_index(grid, rows, columns, row, column);
  }
};

// Counts codes of `Format`; code(i) is the i-th, and inverse(j) the j-th inverse scale.
template <class Format>
void count_codes(const CountedCodes& m, const auto& code, const auto& inverse,
                 const KernelArgs& a) {
  const uint8_t largest = Format(Format::kLargest).bits;
  const auto magnitude = static_cast<uint8_t>(Format(-0.0F).bits - 1);  // without the sign
  int64_t zeros = 0;
  int64_t at_largest = 0;
  uint32_t most = 0;
  uint32_t most_inverse = 0;
  for (int64_t row = 0; row < m.rows; ++row) {
    for (int64_t column = 0; column < m.columns; ++column) {
      Format absolute;
      absolute.bits = static_cast<uint8_t>(code(row * m.columns + column) & magnitude);
      zeros += absolute.bits == 0 ? 1 : 0;
      at_largest += absolute.bits == largest ? 1 : 0;
      const float scale = inverse(m.scale_at(row, column));
      most = std::max(most, magnitude_of(static_cast<float>(absolute) * scale));
      most_inverse = std::max(most_inverse, magnitude_of(scale));
    }
  }
  const int64_t counts[CodeCounts::kNumCounts] = {m.rows * m.columns, zeros, at_largest};
  auto* sums = a.out[0].as<double>();
  for (int i = 0; i < CodeCounts::kNumCounts; ++i)
    sums[i] = static_cast<double>(counts[i]) + (a.accumulate[0] ? sums[i] : 0.0);
  *a.out[1].as<float>() = std::bit_cast<float>(most);
  *a.out[2].as<float>() = std::bit_cast<float>(most_inverse);
}

void count_nvfp4(const CountedCodes& m, const KernelArgs& a) {
  const auto* codes = a.in[0].as<uint8_t>();
  const auto* scales = a.in[1].as<uint8_t>();
  float of_tensor = 0.0F;
  std::memcpy(&of_tensor, scales + tensor_scale_index(m.rows, m.columns), sizeof(float));
  const auto inverse = [=](int64_t j) {
    E4M3 of_block;
    of_block.bits = scales[j];
    return static_cast<float>(of_block) * of_tensor;
  };
  count_codes<E2M1>(
      m, [=](int64_t i) { return static_cast<uint8_t>(codes[i / 2] >> (i % 2 * 4) & 15); }, inverse,
      a);
}

template <class Format>
void count_float8(const CountedCodes& m, const KernelArgs& a) {
  const auto code = [codes = a.in[0].as<uint8_t>()](int64_t i) { return codes[i]; };
  if (m.grid == ScaleGrid::kMx) {
    const auto* scales = a.in[1].as<uint8_t>();
    count_codes<Format>(
        m, code, [=](int64_t j) { return static_cast<float>(E8M0{scales[j]}); }, a);
  } else {
    const auto* scales = a.in[1].as<float>();
    count_codes<Format>(
        m, code, [=](int64_t j) { return scales[j]; }, a);
  }
}

}  // namespace

Kernel prepare(const CodeCounts& op, const KernelTypes& types, std::string_view) {
  const TensorType& codes = types.in[0];
  const CountedCodes m{.rows = rows_of(codes),
                       .columns = codes.dims.back() * codes_per_element(codes.dtype),
                       .grid = op.grid};
  return [m, dtype = codes.dtype](const KernelArgs& a) {
    if (is_nvfp4(m.grid)) return count_nvfp4(m, a);
    if (dtype == DType::kE4M3) return count_float8<E4M3>(m, a);
    count_float8<E5M2>(m, a);
  };
}

}  // namespace tokamak::cpu
