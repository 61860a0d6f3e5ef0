#include "tokamak/cpu/dispatch.h"
#include "tokamak/ops/elementwise/scale.h"

namespace tokamak::cpu {

Kernel prepare(const Scale& op, const KernelTypes& types, std::string_view) {
  return by_float(types.out[0].dtype, [&]<class T>() -> Kernel {
    using A = Accum<T>;
    const A a = static_cast<A>(static_cast<T>(static_cast<A>(op.a)));
    return [a](const KernelArgs& args) {
      const T* x = args.in[0].as<T>();
      T* y = args.out[0].as<T>();
      parallel_for(args.out[0].numel(),
                   [=](int64_t i) { y[i] = static_cast<T>(a * static_cast<A>(x[i])); });
    };
  });
}

}  // namespace tokamak::cpu
