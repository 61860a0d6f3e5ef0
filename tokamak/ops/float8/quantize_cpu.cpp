#include <bit>
#include <vector>

#include "tokamak/ops/float8/float8.h"
#include "tokamak/ops/float8/mx.h"
#include "tokamak/ops/float8/quantize.h"
#include "tokamak/ops/float8/values_cpu.h"

namespace tokamak::cpu {
namespace {

// A matrix of quantized values over the values x [M, K]: as they lie, or transposed and padded.
struct Matrix {
  int64_t M, K;
  ScaleGrid grid;
  bool transposed;

  Matrix(const TensorType& x, ScaleGrid g, bool t)
      : M(rows_of(x)), K(x.dims.back()), grid(g), transposed(t) {}

  int64_t rows() const { return transposed ? K : M; }

  int64_t columns() const { return transposed ? padded_tokens(M, grid) : K; }

  bool is_padding(int64_t column) const { return transposed && column >= M; }

  int64_t value_at(int64_t row, int64_t column) const {
    return transposed ? column * K + row : row * K + column;
  }

  int64_t scale_at(int64_t row, int64_t column) const {
    return scale_index(grid, rows(), columns(), row, column);
  }
};

template <class Format>
void encode(const Matrix& m, bool power_of_two, const auto& value, const float* amax,
            float delayed_scale, Format* quantized, float* inverse) {
  const Dims scales = scale_dims(m.grid, m.rows(), m.columns());
  const auto scale_of = [&](float a) {
    return delayed_scale > 0.0F ? delayed_scale : float8_scale(a, Format::kLargest, power_of_two);
  };
  for (int64_t i = 0; i < TensorType{.dims = scales}.numel(); ++i)
    inverse[i] = 1.0F / scale_of(amax[i]);
  parallel_rows(m.rows(), [&](int64_t row) {
    int64_t at = -1;
    float scale = 0.0F;
    for (int64_t column = 0; column < m.columns(); ++column) {
      Format& code = quantized[row * m.columns() + column];
      if (m.is_padding(column)) {
        code = Format();
        continue;
      }
      if (const int64_t here = m.scale_at(row, column); here != at)
        scale = scale_of(amax[at = here]);
      code = Format(value(m.value_at(row, column)) * scale);
    }
  });
}

// Takes the maximum of each 32 neighbours and encodes them.
template <class Format>
void encode_mx(const Matrix& m, bool rounds_up, const auto& value, Format* quantized,
               uint8_t* scales) {
  const Dims dims = scale_dims(m.grid, m.rows(), m.columns());
  std::fill_n(scales, TensorType{.dims = dims}.numel(), uint8_t{0});
  parallel_rows(m.rows(), [&](int64_t row) {
    for (int64_t first = 0; first < m.columns(); first += kMxBlock) {
      const int64_t end = std::min(first + kMxBlock, m.columns());
      uint32_t most = 0;
      for (int64_t column = first; column < end; ++column) {
        if (!m.is_padding(column))
          most = std::max(most, magnitude_of(value(m.value_at(row, column))));
      }
      const E8M0 scale = mx_scale<Format>(std::bit_cast<float>(most), rounds_up);
      scales[m.scale_at(row, first)] = scale.bits;
      for (int64_t column = first; column < end; ++column) {
        quantized[row * m.columns() + column] =
            m.is_padding(column) ? Format()
                                 : Format(value(m.value_at(row, column)) * mx_multiplier(scale));
      }
    }
  });
}

// maxima = max(maxima, |x|) under each scale.
template <class T>
void take_maxima(const Matrix& m, const T* x, bool to_bf16, float* maxima) {
  for (int64_t row = 0; row < m.M; ++row) {
    for (int64_t k = 0; k < m.K; ++k) {
      float& most = maxima[m.transposed ? m.scale_at(k, row) : m.scale_at(row, k)];
      const uint32_t mine = magnitude_of(rounded(x[row * m.K + k], to_bf16));
      most = std::bit_cast<float>(std::max(std::bit_cast<uint32_t>(most), mine));
    }
  }
}

Kernel prepare_mx(const Quantize& op, const KernelTypes& types) {
  const Matrix m(types.in[0], op.grid, op.layout == Quantize::Layout::kTransposed);
  return by_float(types.in[0].dtype, [&]<class T>() -> Kernel {
    return [=](const KernelArgs& a) {
      const T* x = a.in[0].as<T>();
      const bool to_bf16 = op.rounds_to == DType::kBF16;
      const auto value = [=](int64_t i) { return rounded(x[i], to_bf16); };
      auto* scales = a.out[1].as<uint8_t>();
      op.format == DType::kE4M3 ? encode_mx(m, op.rounds_up, value, a.out[0].as<E4M3>(), scales)
                                : encode_mx(m, op.rounds_up, value, a.out[0].as<E5M2>(), scales);
    };
  });
}

}  // namespace

Kernel prepare(const Amax& op, const KernelTypes& types, std::string_view) {
  const Matrix m(types.in[0], op.grid, op.transposed);
  const bool has_so_far = types.in.size() == (op.is_gated ? 3 : 2);
  return by_float(types.in[0].dtype, [&]<class T>() -> Kernel {
    return
        [=, to_bf16 = op.rounds_to == DType::kBF16, is_gated = op.is_gated](const KernelArgs& a) {
          float* maxima = a.out[0].as<float>();
          for (int64_t i = 0; i < a.out[0].numel(); ++i)
            maxima[i] = has_so_far ? a.in[1].as<float>()[i] : 0.0F;
          if (is_gated && *a.in.back().as<float>() > 0.0F) return;
          take_maxima(m, a.in[0].as<T>(), to_bf16, maxima);
        };
  });
}

Kernel prepare(const Quantize& op, const KernelTypes& types, std::string_view) {
  using Layout = Quantize::Layout;
  if (op.grid == ScaleGrid::kMx) return prepare_mx(op, types);
  return by_float(types.in[0].dtype, [&]<class T>() -> Kernel {
    return [op, type = types.in[0]](const KernelArgs& a) {
      const T* x = a.in[0].as<T>();
      const bool to_bf16 = op.rounds_to == DType::kBF16;
      const auto value = [=](int64_t i) { return rounded(x[i], to_bf16); };
      const float delayed = op.is_delayed ? *a.in[2].as<float>() : 0.0F;
      if (op.has_amax) {
        auto* most = a.out.back().as<float>();
        std::fill_n(most, a.out.back().numel(), 0.0F);
        take_maxima(Matrix(type, op.grid, !op.is_delayed), x, to_bf16, most);
      }
      size_t out = 0;
      for (const bool transposed : {false, true}) {
        if (op.layout == (transposed ? Layout::kRows : Layout::kTransposed)) continue;
        const Matrix m(type, op.grid, transposed);
        const Tensor& quantized = a.out[out++];
        const Tensor& inverse_scales = a.out[static_cast<size_t>(op.inverse_output(transposed))];
        auto* inverse = inverse_scales.as<float>();
        std::vector<float> own;
        if (!a.has(1)) {
          own.resize(inverse_scales.numel());
          take_maxima(m, x, to_bf16, own.data());
        }
        const float* amax = a.has(1) ? a.in[1].as<float>() : own.data();
        if (op.format == DType::kE4M3) {
          encode(m, op.power_of_two, value, amax, delayed, quantized.as<E4M3>(), inverse);
        } else {
          encode(m, op.power_of_two, value, amax, delayed, quantized.as<E5M2>(), inverse);
        }
      }
    };
  });
}

}  // namespace tokamak::cpu
