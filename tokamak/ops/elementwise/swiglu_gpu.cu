#include <optional>
#include <type_traits>

#include "tokamak/gpu/dependent.cuh"
#include "tokamak/gpu/divisor.cuh"
#include "tokamak/ops/elementwise/gate_codes_gpu.cuh"
#include "tokamak/ops/elementwise/swiglu_gpu.cuh"
#include "tokamak/ops/float8/fused_float8_gpu.cuh"

namespace tokamak::gpu {
namespace {

// The offset of y's element i in gate, up and their gradients. Packed rows hold twice y's columns:
// row r begins r F later there.
struct Apart {
  __device__ int64_t operator()(int64_t i) const { return i; }
};

struct Packed {
  Divisor columns;

  __device__ int64_t operator()(int64_t i) const {
    return i + columns.quotient(i) * columns.value();
  }
};

// y = g share(g) u; three accesses per element, two where only codes of y are stored. `kept` makes
// codes of g and u.
template <class Form, class T, class Place, class Kept = NoGateCodes>
struct Gate {
  using Element = T;
  static constexpr bool kKeepsGates = !std::is_same_v<Kept, NoGateCodes>;
  Place place;
  const T* gate;
  const T* up;
  T* y;

  DelayedCodes codes = {};
  Kept kept = {};

  template <int K>
  __device__ uint32_t operator()(int64_t i) const {
    T g[K];
    compute(i, g);
    if (y != nullptr) store<K>(y + i, g);
    if (codes.codes != nullptr) codes.store<E4M3>(i, g);
    return magnitude_of(g);
  }

  template <int K>
  __device__ void values(int64_t i, T (&g)[K]) const {
    compute(i, g);
    if (y != nullptr) store<K>(y + i, g);
  }

 private:
  template <int K>
  __device__ void compute(int64_t i, T (&g)[K]) const {
    const int64_t at = place(i);
    T u[K];
    load<K>(gate + at, g);
    load<K>(up + at, u);
    kept.put(at, g, u);
    apply_gates<Form>(g, u);
  }
};

// See differentiate_gates; five accesses per element, six with y. All inputs are read first:
// outputs may lie on any of them.
template <class Form, class T, bool kEmitsY, class Place>
struct GateGrad {
  using Element = T;
  Place place;
  const T* gate;
  const T* up;
  const T* dy;
  T* dgate;
  T* dup;
  T* y;

  template <int K>
  __device__ uint32_t operator()(int64_t i) const {
    const int64_t at = place(i);
    T gs[K];
    T us[K];
    T ds[K];
    load<K>(gate + at, gs);
    load<K>(up + at, us);
    load<K>(dy + i, ds);
    differentiate_gates<Form>(gs, us, ds);
    store<K>(dgate + at, gs);
    store<K>(dup + at, us);
    if constexpr (kEmitsY) store<K>(y + i, ds);
    return max(magnitude_of(gs), magnitude_of(us));
  }
};

// Computes the same from codes of gate and up. Rows of dgate and dup lie `row_stride` apart.
template <class Form, class T, bool kEmitsY>
struct GateGradOfCodes {
  using Element = T;
  Divisor columns;
  CodedGates gates;
  const T* dy;
  T* dgate;
  T* dup;
  T* y;
  int64_t row_stride;

  template <int K>
  __device__ uint32_t operator()(int64_t i) const {
    T gs[K];
    T us[K];
    T ds[K];
    const int64_t row = columns.quotient(i);
    const int64_t column = i - row * columns.value();
    if (columns.value() % K == 0) {
      gates.load(row, column, gs, us);
    } else {
#pragma unroll
      for (int k = 0; k < K; ++k) {
        T g[1];
        T u[1];
        const int64_t r = columns.quotient(i + k);
        gates.load(r, i + k - r * columns.value(), g, u);
        gs[k] = g[0];
        us[k] = u[0];
      }
    }
    load<K>(dy + i, ds);
    differentiate_gates<Form>(gs, us, ds);
    const int64_t at = row * row_stride + column;
    store<K>(dgate + at, gs);
    store<K>(dup + at, us);
    if constexpr (kEmitsY) store<K>(y + i, ds);
    return max(magnitude_of(gs), magnitude_of(us));
  }
};

// Makes codes of gate and up, and returns what makes them in the kernel of y, or nothing if a pass
// before it has.
template <class T>
std::optional<GateCodes> gate_codes_of(const KernelArgs& args, bool packed, int64_t F,
                                       const FusedOutput& fused, const T* y) {
  const size_t first = fused.stores ? 1 : 0;  // of the outputs
  const auto codes = [&](size_t k) { return args.out[first + 2 * k].as<uint8_t>(); };
  const auto scales = [&](size_t k) { return args.out[first + 2 * k + 1].as<uint8_t>(); };
  const T* const gate = args.in[0].as<T>();
  const T* const up = packed ? gate + F : args.in[1].as<T>();
  const GateCodes made{.gate = codes(0),
                       .up = packed ? codes(0) + F : codes(1),
                       .gate_scales = scales(0),
                       .up_scales = packed ? scales(0) + gate_scales(F) : scales(1)};
  const bool is_held =
      fused.makes_codes_of_rows()
          ? holds_segments<T>(F, codes_of(args, fused), gate, up, y, made.gate, made.up)
          : sizeof(T) <= 4 && F % kGateSegment == 0 &&
                is_packed<T>(F, gate, up, y, made.gate, made.up,
                             delayed_codes_of(args, fused).codes);
  if (is_held) return made;
  for (size_t k = 0; k < args.in.size() && k < (packed ? 1 : 2); ++k) {
    const Tensor& x = args.in[k];
    launch_gate_codes(x.as<T>(), F == 0 ? 0 : x.numel() / F, F, codes(k), scales(k), args.stream);
  }
  return std::nullopt;
}

template <class Form, class T>
void launch_gate(const KernelArgs& args, const Swiglu& op, const FusedOutput& fused, bool waits) {
  const bool packed = op.packed;
  const Tensor& x = args.in[0];
  const int64_t F = packed ? x.dim(-1) / 2 : x.dim(-1);
  const int64_t n = packed ? x.numel() / 2 : x.numel();
  const T* gate = x.as<T>();
  const T* up = packed ? gate + F : args.in[1].as<T>();
  T* y = fused.stores ? args.out[0].as<T>() : nullptr;
  const DelayedCodes codes = delayed_codes_of(args, fused);
  const auto launch = [&]<class Of>(const Of& f) {
    if constexpr (!Of::kKeepsGates) {
      if (waits) return launch_vectors_for_few(n, args.stream, f, gate, up, y);
      if (fused.is_gated())
        return launch_gated_max(n, args.stream, f, gate_of(args, fused), gate, up);
    }
    if (fused.makes_codes_of_rows()) {
      launch_codes_of_rows<E4M3>(f, F == 0 ? 0 : n / F, F, codes_of(args, fused), args.stream, gate,
                                 up, y);
    } else {
      launch_vectors_max(n, args.stream, f, maximum_of(args, fused.takes_maximum), gate, up, y,
                         codes.codes);
      if (n == 0) store_inverse_of_none<E4M3>(codes, args.stream);
    }
  };
  const auto launch_at = [&](const auto& place, const auto& kept) {
    launch(Gate<Form, T, std::decay_t<decltype(place)>, std::decay_t<decltype(kept)>>{
        place, gate, up, y, codes, kept});
  };
  const auto launch_kept = [&](const auto& kept) {
    packed ? launch_at(Packed{Divisor(std::max<int64_t>(F, 1))}, kept) : launch_at(Apart{}, kept);
  };
  std::optional<GateCodes> made;
  if (op.makes_codes && fused.stores_others) made = gate_codes_of(args, packed, F, fused, y);
  if constexpr (sizeof(T) <= 4) {
    if (made) return launch_kept(*made);
  }
  launch_kept(NoGateCodes{});
}

template <class Form, class T, bool kEmitsY>
void launch_grad_of_codes(const KernelArgs& args, bool packed, uint32_t* most) {
  const size_t num_gates = packed ? 1 : 2;
  const Tensor& dy = args.in[2 * num_gates];
  const int64_t F = dy.dim(-1);
  const int64_t columns = std::max<int64_t>(F, 1);
  T* const dgate = args.out[0].as<T>();
  const GateGradOfCodes<Form, T, kEmitsY> f{.columns = Divisor(columns),
                                            .gates = coded_gates_of(args, packed, F),
                                            .dy = dy.as<T>(),
                                            .dgate = dgate,
                                            .dup = packed ? dgate + F : args.out[1].as<T>(),
                                            .y = kEmitsY ? args.out[num_gates].as<T>() : nullptr,
                                            .row_stride = packed ? 2 * F : F};
  launch_vectors_max(dy.numel(), args.stream, f, most, f.dy, f.dgate, f.dup, f.y, f.gates.gate,
                     f.gates.up);
}

template <class Form, class T, bool kEmitsY>
void launch_grad(const KernelArgs& args, bool packed, uint32_t* most) {
  const Tensor& dy = args.in[packed ? 1 : 2];
  T* y = kEmitsY ? args.out[packed ? 1 : 2].as<T>() : nullptr;
  const T* gate = args.in[0].as<T>();
  T* dgate = args.out[0].as<T>();
  const auto launch = [&](const auto& f) {
    launch_vectors_max(dy.numel(), args.stream, f, most, gate, f.up, f.dy, dgate, f.dup, y);
  };
  if (packed) {
    const int64_t F = dy.dim(-1);
    launch(GateGrad<Form, T, kEmitsY, Packed>{
        {Divisor(std::max<int64_t>(F, 1))}, gate, gate + F, dy.as<T>(), dgate, dgate + F, y});
  } else {
    launch(GateGrad<Form, T, kEmitsY, Apart>{
        {}, gate, args.in[1].as<T>(), dy.as<T>(), dgate, args.out[1].as<T>(), y});
  }
}

Kernel forward(const Swiglu& op, const KernelTypes& types, const FusedOutput& fused, bool waits) {
  return by_float(types.in[0].dtype, [&]<class T>() -> Kernel {
    const auto launch =
        op.kind == GateKind::kGelu ? launch_gate<gates::GeluTanh, T> : launch_gate<gates::Silu, T>;
    return [=](const KernelArgs& args) { launch(args, op, fused, waits); };
  });
}

template <class Form, class T>
auto grad_launcher(bool emits_y, GateInputs gates) {
  if (gates == GateInputs::kCodes)
    return emits_y ? launch_grad_of_codes<Form, T, true> : launch_grad_of_codes<Form, T, false>;
  return emits_y ? launch_grad<Form, T, true> : launch_grad<Form, T, false>;
}

Kernel gradient(const SwigluGrad& op, const KernelTypes& types, bool takes_maximum) {
  return by_float(types.out[0].dtype, [&]<class T>() -> Kernel {
    const auto launch = op.kind == GateKind::kGelu
                            ? grad_launcher<gates::GeluTanh, T>(op.emits_y, op.gates)
                            : grad_launcher<gates::Silu, T>(op.emits_y, op.gates);
    return [=, packed = op.packed](const KernelArgs& args) {
      launch(args, packed, maximum_of(args, takes_maximum));
    };
  });
}

}  // namespace

Kernel prepare(const Swiglu& op, const KernelTypes& types, const Setup& setup) {
  return forward(op, types, {}, waits_for_few(setup, rows_of(types.in[0])));
}

Kernel prepare_fused(const Swiglu& op, const KernelTypes& types, const FusedOutput& fused,
                     const Setup&) {
  return forward(op, types, fused, false);
}

Kernel prepare(const SwigluGrad& op, const KernelTypes& types, const Setup&) {
  return gradient(op, types, false);
}

Kernel prepare_fused(const SwigluGrad& op, const KernelTypes& types, const FusedOutput& fused,
                     const Setup&) {
  return gradient(op, types, fused.takes_maximum);
}

}  // namespace tokamak::gpu
