#include "tokamak/cpu/dispatch.h"
#include "tokamak/ops/float8/float8.h"
#include "tokamak/ops/optimizer/accumulate.h"

namespace tokamak::cpu {

namespace {

// Quantized values are decoded without a scale.
template <class Make>
Kernel by_element(DType dtype, Make&& make) {
  if (dtype == DType::kE4M3) return make.template operator()<E4M3>();
  if (dtype == DType::kE5M2) return make.template operator()<E5M2>();
  if (dtype == DType::kU8) return make.template operator()<uint8_t>();
  return by_number(dtype, make);
}

}  // namespace

Kernel prepare(const Accumulate&, const KernelTypes& types, std::string_view) {
  return by_element(types.in[0].dtype, [&]<class In>() {
    return by_float(types.out[0].dtype, [&]<class Out>() -> Kernel {
      return [](const KernelArgs& a) {
        const In* x = a.in[0].as<In>();
        Out* y = a.out[0].as<Out>();
        const bool add = a.accumulate[0];
        parallel_for(a.out[0].numel(), [=](int64_t i) {
          using A = Accum<Out>;
          const A value = static_cast<A>(static_cast<Accum<In>>(x[i]));
          y[i] = static_cast<Out>(add ? static_cast<A>(y[i]) + value : value);
        });
      };
    });
  });
}

}  // namespace tokamak::cpu
