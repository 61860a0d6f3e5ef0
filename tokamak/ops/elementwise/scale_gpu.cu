#include "tokamak/gpu/dispatch.cuh"
#include "tokamak/ops/elementwise/scale.h"

namespace tokamak::gpu {
namespace {

// y = a x; two accesses per element.
template <class T>
struct Product {
  using Element = T;
  Accum<T> a;
  const T* x;
  T* y;

  template <int K>
  __device__ void operator()(int64_t i) const {
    T v[K];
    load<K>(x + i, v);
#pragma unroll
    for (int k = 0; k < K; ++k) v[k] = to<T>(a * to<Accum<T>>(v[k]));
    store<K>(y + i, v);
  }
};

}  // namespace

Kernel prepare(const Scale& op, const KernelTypes& types, const Setup&) {
  return by_float(types.out[0].dtype, [&]<class T>() -> Kernel {
    using A = Accum<T>;
    const A a = to<A>(to<T>(static_cast<A>(op.a)));
    return [a](const KernelArgs& args) {
      const Product<T> product{a, args.in[0].as<T>(), args.out[0].as<T>()};
      launch_vectors(args.out[0].numel(), args.stream, product, product.x, product.y);
    };
  });
}

}  // namespace tokamak::gpu
