#include "tokamak/gpu/dispatch.cuh"
#include "tokamak/ops/elementwise/softcap.h"

namespace tokamak::gpu {
namespace {

// y = cap tanh(x / cap); two accesses per element.
template <class T>
struct Capped {
  using Element = T;
  Accum<T> cap;
  const T* x;
  T* y;

  template <int K>
  __device__ void operator()(int64_t i) const {
    T v[K];
    load<K>(x + i, v);
#pragma unroll
    for (int k = 0; k < K; ++k) v[k] = to<T>(cap * tanh(to<Accum<T>>(v[k]) / cap));
    store<K>(y + i, v);
  }
};

}  // namespace

Kernel prepare(const Softcap& op, const KernelTypes& types, const Setup&) {
  return by_float(types.out[0].dtype, [&]<class T>() -> Kernel {
    const auto cap = static_cast<Accum<T>>(op.cap);
    return [cap](const KernelArgs& args) {
      const Capped<T> capped{cap, args.in[0].as<T>(), args.out[0].as<T>()};
      launch_vectors(args.out[0].numel(), args.stream, capped, capped.x, capped.y);
    };
  });
}

}  // namespace tokamak::gpu
