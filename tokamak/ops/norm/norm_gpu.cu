#include "tokamak/ops/norm/norm_kernels_gpu.cuh"

namespace tokamak::gpu {
namespace {

// Stores y in an output.
template <size_t kOutput>
struct StoreOutput {
  template <class T>
  StoreRows<T> operator()(const KernelArgs& args) const {
    return StoreRows<T>(args.out[kOutput].as<T>());
  }
};

// Where the gradient's kernel does not make y, the forward's kernel does.
template <bool kZeroCentered>
Kernel rms_gradient_of(const RmsNormGrad& op, const KernelTypes& types, const Setup& setup,
                       bool takes_maximum) {
  const int64_t N = rows_of(types.in[0]);
  const int64_t D = types.in[0].dims.back();
  const bool waits = can_wait_for_previous(setup);
  return by_float(types.out[0].dtype, [=, eps = op.eps, emits_y = op.emits_y]<class T>() -> Kernel {
    return [=](const KernelArgs& args) {
      T* const y = emits_y ? args.out[2].as<T>() : nullptr;
      const RmsGradient<T, kZeroCentered> gradient{static_cast<Accum<T>>(eps)};
      const bool has_y =
          launch_row_sums(gradient, N, D, args, waits, false, y, maximum_of(args, takes_maximum));
      if (has_y || !emits_y) return;
      const NormInputs<T> o{.x = args.in[0].as<T>(),
                            .branch = nullptr,
                            .w = args.in[1].as<T>(),
                            .b = nullptr,
                            .sum = nullptr};
      launch_norm<RmsRow<T, kZeroCentered>, false>(o, StoreRows<T>(y), N, D, eps, false,
                                                   as_stream(args.stream));
    };
  });
}

}  // namespace

Kernel rms_norm_grad_kernel(const RmsNormGrad& op, const KernelTypes& types, const Setup& setup,
                            bool takes_maximum) {
  return op.zero_centered ? rms_gradient_of<true>(op, types, setup, takes_maximum)
                          : rms_gradient_of<false>(op, types, setup, takes_maximum);
}

Kernel layer_norm_grad_kernel(const LayerNormGrad& op, const KernelTypes& types, const Setup& setup,
                              bool takes_maximum) {
  const int64_t N = rows_of(types.in[0]);
  const int64_t D = types.in[0].dims.back();
  return by_float(types.out[0].dtype, [&, eps = op.eps]<class T>() -> Kernel {
    const bool streams = prepare_stream<LayerGradient<T>>(D, *setup.device);
    return [=, waits = can_wait_for_previous(setup)](const KernelArgs& args) {
      launch_row_sums(LayerGradient<T>{static_cast<Accum<T>>(eps)}, N, D, args, waits, streams,
                      static_cast<T*>(nullptr), maximum_of(args, takes_maximum));
    };
  });
}

Kernel prepare(const RmsNorm& op, const KernelTypes& types, const Setup& setup) {
  return rms_norm_kernel(op, types, setup, StoreOutput<0>{});
}

Kernel prepare(const AddRmsNorm& op, const KernelTypes& types, const Setup& setup) {
  return add_rms_norm_kernel(op, types, setup, true, StoreOutput<1>{});
}

Kernel prepare(const RmsNormGrad& op, const KernelTypes& types, const Setup& setup) {
  return rms_norm_grad_kernel(op, types, setup, false);
}

Kernel prepare(const LayerNorm& op, const KernelTypes& types, const Setup& setup) {
  return norm_kernel<LayerRow>(op.eps, types, setup, StoreOutput<0>{});
}

Kernel prepare(const AddLayerNorm& op, const KernelTypes& types, const Setup& setup) {
  return add_norm_kernel<LayerRow>(op.eps, types, setup, true, StoreOutput<1>{});
}

Kernel prepare(const LayerNormGrad& op, const KernelTypes& types, const Setup& setup) {
  return layer_norm_grad_kernel(op, types, setup, false);
}

}  // namespace tokamak::gpu
