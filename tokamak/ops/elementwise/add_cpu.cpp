#include "tokamak/cpu/dispatch.h"
#include "tokamak/ops/elementwise/add.h"

namespace tokamak::cpu {

Kernel prepare(const Add&, const KernelTypes& types, std::string_view) {
  return by_float(types.out[0].dtype, []<class T>() -> Kernel {
    return [](const KernelArgs& args) {
      const T* a = args.in[0].as<T>();
      const T* b = args.in[1].as<T>();
      T* y = args.out[0].as<T>();
      using A = Accum<T>;
      parallel_for(args.out[0].numel(), [=](int64_t i) {
        y[i] = static_cast<T>(static_cast<A>(a[i]) + static_cast<A>(b[i]));
      });
    };
  });
}

}  // namespace tokamak::cpu
