#include "tokamak/cpu/dispatch.h"
#include "tokamak/cpu/vec_math.h"
#include "tokamak/ops/elementwise/softcap.h"

namespace tokamak::cpu {

Kernel prepare(const Softcap& op, const KernelTypes& types, std::string_view) {
  return by_float(types.out[0].dtype, [&]<class T>() -> Kernel {
    using A = Accum<T>;
    const A cap = static_cast<A>(op.cap);
    return [cap](const KernelArgs& args) {
      const T* x = args.in[0].as<T>();
      T* y = args.out[0].as<T>();
      parallel_for(args.out[0].numel(), [=](int64_t i) {
        y[i] = static_cast<T>(cap * vec::tanh(static_cast<A>(x[i]) / cap));
      });
    };
  });
}

}  // namespace tokamak::cpu
