#include "tokamak/cpu/dispatch.h"
#include "tokamak/cpu/vec_math.h"
#include "tokamak/ops/swiglu.h"

namespace tokamak::cpu {

Kernel prepare(const Swiglu&, const KernelTypes& types, std::string_view) {
  return by_float(types.out[0].dtype, []<class T>() -> Kernel {
    return [](const KernelArgs& args) {
      const T* gate = args.in[0].as<T>();
      const T* up = args.in[1].as<T>();
      T* y = args.out[0].as<T>();
      using A = Accum<T>;
      parallel_for(args.out[0].numel(), [=](int64_t i) {
        const A g = static_cast<A>(gate[i]);
        y[i] = static_cast<T>(g * vec::sigmoid(g) * static_cast<A>(up[i]));
      });
    };
  });
}

namespace {

// silu'(g) = s (1 + g (1 - s)) with s = sigmoid(g)
template <class T, bool kEmitsY>
void swiglu_grad(const KernelArgs& args) {
  const T* gate = args.in[0].as<T>();
  const T* up = args.in[1].as<T>();
  const T* dy = args.in[2].as<T>();
  T* dgate = args.out[0].as<T>();
  T* dup = args.out[1].as<T>();
  T* y = kEmitsY ? args.out[2].as<T>() : nullptr;
  using A = Accum<T>;
  parallel_for(args.out[0].numel(), [=](int64_t i) {
    const A g = static_cast<A>(gate[i]);
    const A u = static_cast<A>(up[i]);
    const A d = static_cast<A>(dy[i]);
    const A s = vec::sigmoid(g);
    dgate[i] = static_cast<T>(d * u * s * (A{1} + g * (A{1} - s)));
    dup[i] = static_cast<T>(d * g * s);
    if constexpr (kEmitsY) y[i] = static_cast<T>(g * s * u);
  });
}

}  // namespace

Kernel prepare(const SwigluGrad& op, const KernelTypes& types, std::string_view) {
  return by_float(types.out[0].dtype, [&]<class T>() -> Kernel {
    return op.emits_y ? swiglu_grad<T, true> : swiglu_grad<T, false>;
  });
}

}  // namespace tokamak::cpu
