#include "tokamak/gpu/dispatch.cuh"
#include "tokamak/ops/float8/float8_gpu.cuh"
#include "tokamak/ops/optimizer/accumulate.h"

namespace tokamak::gpu {
namespace {

// y (+)= x; one access to x, one or two to y.
template <class From, class To, bool kAdd>
struct AddInto {
  using Element = From;
  const From* x;
  To* y;

  template <int K>
  __device__ void operator()(int64_t i) const {
    From from[K];
    To into[K];
    load<K>(x + i, from);
    if constexpr (kAdd) load<K>(y + i, into);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      using A = Accum<To>;
      const A addend = to<A>(from[k]);
      into[k] = to<To>(kAdd ? to<A>(into[k]) + addend : addend);
    }
    store<K>(y + i, into);
  }
};

template <class From, class To, bool kAdd>
void run(const KernelArgs& args) {
  const AddInto<From, To, kAdd> add{args.in[0].as<From>(), args.out[0].as<To>()};
  launch_vectors(args.out[0].numel(), args.stream, add, add.x, add.y);
}

// A code used as an element.
template <class Format>
struct Code {
  uint8_t bits;

  template <class A>
  __device__ explicit operator A() const {
    return static_cast<A>(decode_float8<Format>(bits));
  }
};

// Quantized values are decoded without a scale.
template <class Make>
Kernel by_element(DType dtype, Make&& make) {
  if (dtype == DType::kE4M3) return make.template operator()<Code<E4M3>>();
  if (dtype == DType::kE5M2) return make.template operator()<Code<E5M2>>();
  if (dtype == DType::kU8) return make.template operator()<uint8_t>();
  return by_number(dtype, make);
}

}  // namespace

Kernel prepare(const Accumulate&, const KernelTypes& types, const Setup&) {
  return by_element(types.in[0].dtype, [&]<class From>() -> Kernel {
    return by_float(types.out[0].dtype, []<class To>() -> Kernel {
      return [](const KernelArgs& args) {
        args.accumulate[0] ? run<From, To, true>(args) : run<From, To, false>(args);
      };
    });
  });
}

}  // namespace tokamak::gpu
