#include "tokamak/ops/attention/rope_gpu.cuh"
#include "tokamak/ops/elementwise/gelu_gpu.cuh"
#include "tokamak/ops/elementwise/swiglu_gpu.cuh"
#include "tokamak/ops/float8/fused_float8_gpu.cuh"

namespace tokamak::gpu {
namespace {

// Quantizes what F computes, if asked to, and returns its greatest magnitude.
template <class F>
struct Encoded {
  using Element = typename F::Element;
  F f;
  QuantizedUnderDelayed quantized;

  template <int K>
  __device__ uint32_t operator()(int64_t i) const {
    Element v[K];
    f.values(i, v);
    if (quantized.values != nullptr) quantized.template store<E4M3>(i, v);
    return magnitude_of(v);
  }
};

// Computes n values in rows of D by `f`, with the maximum or the quantized values that `fused` asks
// for. All `pointers` are those that f accesses.
template <class F, class... P>
void launch_fused(const KernelArgs& args, const FusedOutput& fused, int64_t n, int64_t D,
                  const F& f, const P*... pointers) {
  if (fused.quantizes_rows()) {
    return launch_quantized_rows<E4M3>(f, D == 0 ? 0 : n / D, D, quantized_of(args, fused),
                                       args.stream, pointers...);
  }
  const Encoded<F> encoded{f, delayed_of(args, fused)};
  if (fused.is_gated())
    return launch_gated_max(n, args.stream, encoded, gate_of(args, fused), pointers...);
  launch_vectors_max(n, args.stream, encoded, maximum_of(args, fused.takes_maximum), pointers...,
                     encoded.quantized.values);
  if (n == 0) store_inverse_of_none<E4M3>(encoded.quantized, args.stream);
}

template <class Form, class T>
void launch_gate(const KernelArgs& args, bool packed, const FusedOutput& fused) {
  with_gate<Form, T>(args, packed, fused.stores, [&](const auto& f, int64_t n, int64_t columns) {
    launch_fused(args, fused, n, columns, f, f.gate, f.up, f.y);
  });
}

}  // namespace

Kernel prepare_fused(const Swiglu& op, const KernelTypes& types, const FusedOutput& fused,
                     const Setup&) {
  return by_float(types.in[0].dtype, [&]<class T>() -> Kernel {
    const auto launch =
        op.kind == GateKind::kGelu ? launch_gate<gates::GeluTanh, T> : launch_gate<gates::Silu, T>;
    return [=, packed = op.packed](const KernelArgs& args) { launch(args, packed, fused); };
  });
}

Kernel prepare_fused(const SwigluGrad& op, const KernelTypes& types, const FusedOutput& fused,
                     const Setup&) {
  return swiglu_grad_kernel(op, types, fused.takes_maximum);
}

Kernel prepare_fused(const Gelu& op, const KernelTypes& types, const FusedOutput& fused,
                     const Setup&) {
  return by_gelu_kind(op.kind, [&]<class Form>() -> Kernel {
    return by_float(types.in[0].dtype, [&]<class T>() -> Kernel {
      return [=](const KernelArgs& args) {
        const Tensor& x = args.in[0];
        const Activate<T, Form> f{x.as<T>(), fused.stores ? args.out[0].as<T>() : nullptr};
        launch_fused(args, fused, x.numel(), x.dim(-1), f, f.x, f.y);
      };
    });
  });
}

Kernel prepare_fused(const GeluGrad& op, const KernelTypes& types, const FusedOutput& fused,
                     const Setup&) {
  return gelu_grad_kernel(op, types, fused.takes_maximum);
}

Kernel prepare_fused(const Rope& op, const KernelTypes& types, const FusedOutput& fused,
                     const Setup& setup) {
  return rope_kernel(op, types, setup, fused.takes_maximum);
}

Kernel prepare_fused(const RopeConcat& op, const KernelTypes& types, const FusedOutput& fused,
                     const Setup& setup) {
  return rope_kernel(op, types, setup, fused.takes_maximum);
}

}  // namespace tokamak::gpu
