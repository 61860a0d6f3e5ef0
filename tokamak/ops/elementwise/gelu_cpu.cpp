#include "tokamak/cpu/dispatch.h"
#include "tokamak/cpu/vec_math.h"
#include "tokamak/ops/elementwise/gelu.h"

namespace tokamak::cpu {
namespace {

constexpr double kSqrt8OverPi = 1.5957691216057308;
constexpr double kInvSqrt2Pi = 0.39894228040143268;
constexpr double kCubic = 0.044715;

// (1 + tanh u) / 2 = sigmoid(2 u)
struct Tanh {
  template <class A>
  static A gate(A x) {
    return vec::sigmoid(A(kSqrt8OverPi) * x * (A{1} + A(kCubic) * x * x));
  }

  template <class A>
  static A slope(A x) {
    const A s = gate(x);
    return s + x * s * (A{1} - s) * A(kSqrt8OverPi) * (A{1} + A(3.0 * kCubic) * x * x);
  }

  template <class A>
  static A value(A x) {
    return x * gate(x);
  }
};

struct Exact {
  template <class A>
  static A value(A x) {
    return x * vec::normal_cdf(x);
  }

  template <class A>
  static A slope(A x) {
    return vec::normal_cdf(x) + x * A(kInvSqrt2Pi) * vec::exp(A(-0.5) * x * x);
  }
};

// x sigmoid(kTimes x / 1000)
template <int kTimes>
struct Sigmoid {
  static constexpr double kFactor = kTimes / 1000.0;

  template <class A>
  static A value(A x) {
    return x * vec::sigmoid(A(kFactor) * x);
  }

  template <class A>
  static A slope(A x) {
    const A s = vec::sigmoid(A(kFactor) * x);
    return s + A(kFactor) * x * s * (A{1} - s);
  }
};

struct Relu {
  template <class A>
  static A value(A x) {
    return x > A{0} ? x : A{0};
  }

  template <class A>
  static A slope(A x) {
    return x > A{0} ? A{1} : A{0};
  }
};

// tanh x = 2 sigmoid(2 x) - 1
struct Hyperbolic {
  template <class A>
  static A value(A x) {
    return A{2} * vec::sigmoid(A{2} * x) - A{1};
  }

  template <class A>
  static A slope(A x) {
    const A y = value(x);
    return A{1} - y * y;
  }
};

template <class Make>
Kernel by_kind(GeluKind kind, Make&& make) {
  switch (kind) {
    case GeluKind::kTanh:
      return make.template operator()<Tanh>();
    case GeluKind::kExact:
      return make.template operator()<Exact>();
    case GeluKind::kQuick:
      return make.template operator()<Sigmoid<1702>>();
    case GeluKind::kSilu:
      return make.template operator()<Sigmoid<1000>>();
    case GeluKind::kRelu:
      return make.template operator()<Relu>();
    case GeluKind::kHyperbolic:
      return make.template operator()<Hyperbolic>();
  }
  return {};
}

template <class Form, class T, bool kEmitsY>
void gelu_grad(const KernelArgs& args) {
  const T* x = args.in[0].as<T>();
  const T* dy = args.in[1].as<T>();
  T* dx = args.out[0].as<T>();
  T* y = kEmitsY ? args.out[1].as<T>() : nullptr;
  using A = Accum<T>;
  parallel_for(args.out[0].numel(), [=](int64_t i) {
    const A v = static_cast<A>(x[i]);
    dx[i] = static_cast<T>(static_cast<A>(dy[i]) * Form::slope(v));
    if constexpr (kEmitsY) y[i] = static_cast<T>(Form::value(v));
  });
}

}  // namespace

Kernel prepare(const Gelu& op, const KernelTypes& types, std::string_view) {
  return by_kind(op.kind, [&]<class Form>() {
    return by_float(types.out[0].dtype, []<class T>() -> Kernel {
      return [](const KernelArgs& args) {
        const T* x = args.in[0].as<T>();
        T* y = args.out[0].as<T>();
        using A = Accum<T>;
        parallel_for(args.out[0].numel(), [=](int64_t i) {
          const A v = static_cast<A>(x[i]);
          y[i] = static_cast<T>(Form::value(v));
        });
      };
    });
  });
}

Kernel prepare(const GeluGrad& op, const KernelTypes& types, std::string_view) {
  return by_kind(op.kind, [&]<class Form>() {
    return by_float(types.out[0].dtype, [&]<class T>() -> Kernel {
      return op.emits_y ? gelu_grad<Form, T, true> : gelu_grad<Form, T, false>;
    });
  });
}

}  // namespace tokamak::cpu
