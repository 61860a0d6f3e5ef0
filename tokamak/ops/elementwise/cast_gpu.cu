#include "tokamak/gpu/dispatch.cuh"
#include "tokamak/ops/elementwise/cast.h"

namespace tokamak::gpu {
namespace {

// y = x in another type; one access to each.
template <class From, class To>
struct Convert {
  using Element = From;
  const From* x;
  To* y;

  template <int K>
  __device__ void operator()(int64_t i) const {
    From from[K];
    To into[K];
    load<K>(x + i, from);
#pragma unroll
    for (int k = 0; k < K; ++k) into[k] = to<To>(from[k]);
    store<K>(y + i, into);
  }
};

}  // namespace

Kernel prepare(const Cast&, const KernelTypes& types, const Setup&) {
  return by_number(types.in[0].dtype, [&]<class From>() -> Kernel {
    return by_float(types.out[0].dtype, []<class To>() -> Kernel {
      return [](const KernelArgs& args) {
        const Convert<From, To> convert{args.in[0].as<From>(), args.out[0].as<To>()};
        launch_vectors(args.out[0].numel(), args.stream, convert, convert.x, convert.y);
      };
    });
  });
}

}  // namespace tokamak::gpu
