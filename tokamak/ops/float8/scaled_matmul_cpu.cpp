#include <array>
#include <vector>

#include "tokamak/cpu/dispatch.h"
#include "tokamak/cpu/gemm.h"
#include "tokamak/ops/float8/float8.h"
#include "tokamak/ops/float8/mx.h"
#include "tokamak/ops/float8/scaled_matmul.h"

namespace tokamak::cpu {
namespace {

// Quantized values of `rows` x `columns` under a grid of inverse scales.
struct Operand {
  TensorType type;
  ScaleGrid grid;

  int64_t rows() const { return rows_of(type); }

  int64_t columns() const { return type.dims.back(); }

  // Decodes all values, by rows.
  void decode(const void* quantized, const Tensor& inverse, float* values) const {
    if (type.dtype == DType::kE4M3) {
      decode_as(static_cast<const E4M3*>(quantized), inverse, values);
    } else {
      decode_as(static_cast<const E5M2*>(quantized), inverse, values);
    }
  }

 private:
  template <class Format>
  void decode_as(const Format* quantized, const Tensor& inverse, float* values) const {
    if (grid == ScaleGrid::kMx) {
      const auto* scales = inverse.as<uint8_t>();
      decode_by(
          quantized, [=](int64_t i) { return static_cast<float>(E8M0{scales[i]}); }, values);
    } else {
      const auto* scales = inverse.as<float>();
      decode_by(
          quantized, [=](int64_t i) { return scales[i]; }, values);
    }
  }

  template <class Format>
  void decode_by(const Format* quantized, const auto& scale, float* values) const {
    const std::array<float, 256> table = float8_values<Format>();
    parallel_rows(rows(), [&](int64_t row) {
      for (int64_t column = 0; column < columns(); ++column) {
        const int64_t i = row * columns() + column;
        values[i] =
            table[quantized[i].bits] * scale(scale_index(grid, rows(), columns(), row, column));
      }
    });
  }
};

// The specification: sums in fp32 over decoded values.
template <class Out>
void multiply(int64_t M, int64_t N, int64_t K, const float* a, const float* b, const Out* bias,
              Out* c, bool add) {
  parallel_rows(M, [&](int64_t m) {
    for (int64_t n = 0; n < N; ++n) {
      float sum = add ? static_cast<float>(c[m * N + n]) : 0.0F;
      for (int64_t k = 0; k < K; ++k) sum += a[m * K + k] * b[n * K + k];
      if (bias != nullptr) sum += static_cast<float>(bias[n]);
      c[m * N + n] = static_cast<Out>(sum);
    }
  });
}

}  // namespace

Kernel prepare(const ScaledMatmul& op, const KernelTypes& types, std::string_view variant) {
  const Operand a{.type = types.in[0], .grid = op.a_grid};
  const Operand b{.type = types.in[2], .grid = op.b_grid};
  const bool has_bias = types.in.size() == 5;
  const int64_t M = a.rows();
  const int64_t N = b.rows();
  const int64_t K = b.columns();
  if (variant == kCpuReference.name) {
    return [=, out = op.out](const KernelArgs& args) {
      std::vector<float> values_a(M * K);
      std::vector<float> values_b(N * K);
      a.decode(args.in[0].data, args.in[1], values_a.data());
      b.decode(args.in[2].data, args.in[3], values_b.data());
      const auto run = [&]<class Out>() {
        multiply(M, N, K, values_a.data(), values_b.data(),
                 has_bias ? args.in[4].as<Out>() : nullptr, args.out[0].as<Out>(),
                 args.accumulate[0]);
      };
      out == DType::kBF16 ? run.template operator()<BF16>() : run.template operator()<float>();
    };
  }
  const bool is_narrow = op.out == DType::kBF16;
  const Gemm gemm({.m = M,
                   .n = N,
                   .k = K,
                   .transpose_b = true,
                   .in = DType::kF32,
                   .out = DType::kF32,
                   .bias = has_bias && !is_narrow});
  return [=](const KernelArgs& args) {
    auto* values_a = static_cast<float*>(args.workspace);
    float* values_b = values_a + M * K;
    a.decode(args.in[0].data, args.in[1], values_a);
    b.decode(args.in[2].data, args.in[3], values_b);
    if (!is_narrow) {
      return gemm.run(values_a, values_b, has_bias ? args.in[4].data : nullptr, args.out[0].data,
                      args.accumulate[0]);
    }
    float* sums = values_b + N * K;
    gemm.run(values_a, values_b, nullptr, sums, false);
    const BF16* bias = has_bias ? args.in[4].as<BF16>() : nullptr;
    BF16* c = args.out[0].as<BF16>();
    parallel_rows(M, [&](int64_t m) {
      for (int64_t n = 0; n < N; ++n) {
        float sum = sums[m * N + n];
        if (bias != nullptr) sum += static_cast<float>(bias[n]);
        if (args.accumulate[0]) sum += static_cast<float>(c[m * N + n]);
        c[m * N + n] = BF16(sum);
      }
    });
  };
}

}  // namespace tokamak::cpu
