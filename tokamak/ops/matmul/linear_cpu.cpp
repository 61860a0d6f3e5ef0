#include "tokamak/cpu/dispatch.h"
#include "tokamak/cpu/gemm.h"
#include "tokamak/ops/matmul/linear.h"

namespace tokamak::cpu {
namespace {

// C[m, n] (+)= sum_k A(m, k) B(k, n) with A and B read through strides: the specification of every
// matmul here.
template <class In, class Out, class A = Accum<Out>>
void plain_product(int64_t M, int64_t N, int64_t K, const In* a, int64_t a_m, int64_t a_k,
                   const In* b, int64_t b_k, int64_t b_n, Out* c, bool add) {
  parallel_rows(M, [&](int64_t m) {
    for (int64_t n = 0; n < N; ++n) {
      A sum = add ? static_cast<A>(c[m * N + n]) : A{0};
      for (int64_t k = 0; k < K; ++k)
        sum += static_cast<A>(a[m * a_m + k * a_k]) * static_cast<A>(b[k * b_k + n * b_n]);
      c[m * N + n] = static_cast<Out>(sum);
    }
  });
}

bool is_reference(std::string_view variant) {
  return variant == kCpuReference.name;
}

}  // namespace

Kernel prepare(const Linear& op, const KernelTypes& types, std::string_view variant) {
  const bool bias = types.in.size() == 3 && op.adds_bias;
  const int64_t N = rows_of(types.in[0]);
  const int64_t O = types.in[1].dims[0];
  const int64_t I = types.in[1].dims[1];
  if (!is_reference(variant)) {
    const Gemm gemm({.m = N,
                     .n = O,
                     .k = I,
                     .transpose_b = true,
                     .in = types.in[0].dtype,
                     .out = types.out[0].dtype,
                     .bias = bias});
    return [gemm, bias](const KernelArgs& a) {
      gemm.run(a.in[0].data, a.in[1].data, bias ? a.in[2].data : nullptr, a.out[0].data, false);
    };
  }
  return by_float(types.in[0].dtype, [=]<class T>() -> Kernel {
    return [=](const KernelArgs& a) {
      T* y = a.out[0].as<T>();
      plain_product(N, O, I, a.in[0].as<T>(), I, 1, a.in[1].as<T>(), 1, I, y, false);
      if (!bias) return;
      const T* b = a.in[2].as<T>();
      parallel_rows(N, [&](int64_t n) {
        for (int64_t o = 0; o < O; ++o) {
          y[n * O + o] =
              static_cast<T>(static_cast<Accum<T>>(y[n * O + o]) + static_cast<Accum<T>>(b[o]));
        }
      });
    };
  });
}

Kernel prepare(const LinearGradInput&, const KernelTypes& types, std::string_view variant) {
  const int64_t N = rows_of(types.in[0]);
  const int64_t O = types.in[1].dims[0];
  const int64_t I = types.in[1].dims[1];
  if (!is_reference(variant)) {
    const Gemm gemm({.m = N, .n = I, .k = O, .in = types.in[0].dtype, .out = types.out[0].dtype});
    return [gemm](const KernelArgs& a) {
      gemm.run(a.in[0].data, a.in[1].data, nullptr, a.out[0].data, a.accumulate[0]);
    };
  }
  return by_float(types.in[0].dtype, [=]<class T>() -> Kernel {
    return [=](const KernelArgs& a) {
      plain_product(N, I, O, a.in[0].as<T>(), O, 1, a.in[1].as<T>(), I, 1, a.out[0].as<T>(),
                    a.accumulate[0]);
    };
  });
}

Kernel prepare(const LinearGradWeight& op, const KernelTypes& types, std::string_view variant) {
  const int64_t N = rows_of(types.in[0]);
  const int64_t I = types.in[0].dims.back();
  const int64_t O = types.in[1].dims.back();
  const int64_t M = op.num_rows(types.in[1]);
  const int64_t begin = op.begin;
  if (!is_reference(variant)) {
    const Gemm gemm({.m = M,
                     .n = I,
                     .k = N,
                     .transpose_a = true,
                     .in = types.in[0].dtype,
                     .out = types.out[0].dtype,
                     .a_stride = O});
    const int64_t skipped = begin * size_of(types.in[1].dtype);
    return [gemm, skipped](const KernelArgs& a) {
      gemm.run(static_cast<const std::byte*>(a.in[1].data) + skipped, a.in[0].data, nullptr,
               a.out[0].data, a.accumulate[0]);
    };
  }
  return by_float(types.in[0].dtype, [=]<class T>() -> Kernel {
    return [=](const KernelArgs& a) {
      plain_product(M, I, N, a.in[1].as<T>() + begin, 1, O, a.in[0].as<T>(), I, 1,
                    a.out[0].as<Accum<T>>(), a.accumulate[0]);
    };
  });
}

Kernel prepare(const LinearGradBias&, const KernelTypes& types, std::string_view) {
  const int64_t N = rows_of(types.in[0]);
  const int64_t O = types.in[0].dims.back();
  return by_float(types.in[0].dtype, [=]<class T>() -> Kernel {
    return [=](const KernelArgs& a) {
      const T* dy = a.in[0].as<T>();
      Accum<T>* db = a.out[0].as<Accum<T>>();
      const bool add = a.accumulate[0];
      parallel_ranges(O, 64, [&](int64_t begin, int64_t end, int) {
        if (!add) std::fill(db + begin, db + end, Accum<T>{0});
        for (int64_t n = 0; n < N; ++n) {
          for (int64_t o = begin; o < end; ++o) db[o] += static_cast<Accum<T>>(dy[n * O + o]);
        }
      });
    };
  });
}

}  // namespace tokamak::cpu
