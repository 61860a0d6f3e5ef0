#include "tokamak/cpu/dispatch.h"
#include "tokamak/ops/elementwise/cast.h"

namespace tokamak::cpu {

Kernel prepare(const Cast&, const KernelTypes& types, std::string_view) {
  return by_float(types.in[0].dtype, [&]<class In>() {
    return by_float(types.out[0].dtype, []<class Out>() -> Kernel {
      return [](const KernelArgs& a) {
        const In* x = a.in[0].as<In>();
        Out* y = a.out[0].as<Out>();
        parallel_for(a.out[0].numel(), [=](int64_t i) {
          y[i] = static_cast<Out>(static_cast<Accum<Out>>(static_cast<Accum<In>>(x[i])));
        });
      };
    });
  });
}

}  // namespace tokamak::cpu
