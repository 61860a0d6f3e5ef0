#include "tokamak/cpu/dispatch.h"
#include "tokamak/cpu/vec_math.h"
#include "tokamak/ops/elementwise/swiglu.h"

namespace tokamak::cpu {
namespace {

// The kernels' operands: gate and up as they lie, and as many elements of dy and y.
template <class T>
struct Gates {
  const T* gate = nullptr;
  const T* up = nullptr;
  const T* dy = nullptr;
  T* dgate = nullptr;
  T* dup = nullptr;
  T* y = nullptr;
};

// An activation is x share(x). d_x() is its gradient for d = dy up and s = share(x).
struct Silu {
  template <class A>
  static A share(A x) {
    return vec::sigmoid(x);
  }

  template <class A>
  static A d_x(A d, A x, A s) {
    return d * s * (A{1} + x * (A{1} - s));
  }
};

// (1 + tanh u) / 2 = sigmoid(2 u)
struct GeluTanh {
  static constexpr double kSqrt8OverPi = 1.5957691216057308;
  static constexpr double kCubic = 0.044715;

  template <class A>
  static A share(A x) {
    return vec::sigmoid(A(kSqrt8OverPi) * x * (A{1} + A(kCubic) * x * x));
  }

  template <class A>
  static A d_x(A d, A x, A s) {
    const A slope = A(kSqrt8OverPi) * (A{1} + A(3.0 * kCubic) * x * x);
    return d * s * (A{1} + x * (A{1} - s) * slope);
  }
};

// y = activation(gate) up for elements [begin, end).
template <class Form, class T>
void gate(const Gates<T>& g, int64_t begin, int64_t end) {
  using A = Accum<T>;
  vec::loop(end - begin, [gate = g.gate + begin, up = g.up + begin, y = g.y + begin](int64_t i) {
    const A x = static_cast<A>(gate[i]);
    y[i] = static_cast<T>(x * Form::share(x) * static_cast<A>(up[i]));
  });
}

template <class Form, class T, bool kEmitsY>
void gate_grad(const Gates<T>& of, int64_t begin, int64_t end) {
  using A = Accum<T>;
  vec::loop(end - begin, [=, gate = of.gate + begin, up = of.up + begin, dy = of.dy + begin,
                          dgate = of.dgate + begin, dup = of.dup + begin,
                          y = kEmitsY ? of.y + begin : nullptr](int64_t i) {
    const A g = static_cast<A>(gate[i]);
    const A u = static_cast<A>(up[i]);
    const A d = static_cast<A>(dy[i]);
    const A s = Form::share(g);
    dgate[i] = static_cast<T>(Form::d_x(d * u, g, s));
    dup[i] = static_cast<T>(d * g * s);
    if constexpr (kEmitsY) {
      y[i] = static_cast<T>(g * s * u);
    } else {
      static_cast<void>(y);
    }
  });
}

constexpr int64_t kGrain = 8192;

// Calls body(gates, begin, end) over all elements, row by row where gate and up are packed.
template <class T, class Body>
void for_pieces(const Gates<T>& all, int64_t numel, int64_t columns, bool packed, Body body) {
  if (!packed) {
    parallel_ranges(numel, kGrain, [&](int64_t begin, int64_t end, int) { body(all, begin, end); });
    return;
  }
  if (numel == 0) return;
  parallel_ranges(numel / columns, std::max<int64_t>(1, kGrain / columns),
                  [&](int64_t begin, int64_t end, int) {
                    for (int64_t r = begin; r < end; ++r) {
                      const int64_t at = 2 * r * columns;
                      Gates<T> row = all;
                      row.gate += at;
                      row.up = row.gate + columns;
                      if (all.dgate != nullptr) {
                        row.dgate += at;
                        row.dup = row.dgate + columns;
                        row.dy += r * columns;
                      }
                      if (all.y != nullptr) row.y += r * columns;
                      body(row, int64_t{0}, columns);
                    }
                  });
}

template <class Form, class T, bool kEmitsY>
void swiglu_grad(const KernelArgs& args, bool packed) {
  const size_t gates = packed ? 1 : 2;
  const Tensor& dy = args.in[gates];
  const Gates<T> all{.gate = args.in[0].as<T>(),
                     .up = packed ? nullptr : args.in[1].as<T>(),
                     .dy = dy.as<T>(),
                     .dgate = args.out[0].as<T>(),
                     .dup = packed ? nullptr : args.out[1].as<T>(),
                     .y = kEmitsY ? args.out[gates].as<T>() : nullptr};
  for_pieces(all, dy.numel(), dy.dim(-1), packed, gate_grad<Form, T, kEmitsY>);
}

template <class Form>
Kernel forward(const Swiglu& op, const KernelTypes& types) {
  return by_float(types.out[0].dtype, [&]<class T>() -> Kernel {
    return [packed = op.packed](const KernelArgs& args) {
      const Gates<T> all{.gate = args.in[0].as<T>(),
                         .up = packed ? nullptr : args.in[1].as<T>(),
                         .y = args.out[0].as<T>()};
      for_pieces(all, args.out[0].numel(), args.out[0].dim(-1), packed, gate<Form, T>);
    };
  });
}

template <class Form>
Kernel gradient(const SwigluGrad& op, const KernelTypes& types) {
  return by_float(types.out[0].dtype, [&]<class T>() -> Kernel {
    return [packed = op.packed, emits_y = op.emits_y](const KernelArgs& args) {
      emits_y ? swiglu_grad<Form, T, true>(args, packed)
              : swiglu_grad<Form, T, false>(args, packed);
    };
  });
}

}  // namespace

Kernel prepare(const Swiglu& op, const KernelTypes& types, std::string_view) {
  return op.kind == GateKind::kGelu ? forward<GeluTanh>(op, types) : forward<Silu>(op, types);
}

Kernel prepare(const SwigluGrad& op, const KernelTypes& types, std::string_view) {
  return op.kind == GateKind::kGelu ? gradient<GeluTanh>(op, types) : gradient<Silu>(op, types);
}

}  // namespace tokamak::cpu
