#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tokamak/cpu/dispatch.h"
#include "tokamak/ops/attention/attention_decode_cpu.h"
#include "tokamak/ops/attention/attention_fast_cpu.h"
#include "tokamak/ops/attention/attention_fast_grad_cpu.h"
#include "tokamak/ops/attention/attention_setup_cpu.h"

namespace tokamak::cpu {
namespace {

template <class A, class T>
A dot(const T* a, const T* b, int64_t n) {
  A sum{0};
  for (int64_t d = 0; d < n; ++d) sum += static_cast<A>(a[d]) * static_cast<A>(b[d]);
  return sum;
}

template <class T>
void reference_row(const AttentionSetup& u, const KernelArgs& a, int64_t b, int64_t h, int64_t i) {
  using A = Accum<T>;
  const AttentionShape& s = u.s;
  const int64_t begin = u.begin(u.length(a, b), i);
  const int64_t end = u.end(u.length(a, b), i);
  const int64_t row = u.row(a, b);
  const int64_t kv = h / s.group();
  const T* q = s.part<T>(a.in, 0) + u.q_at(b, i, h);
  const T* k = s.part<T>(a.in, 1);
  const T* v = s.part<T>(a.in, 2);
  std::vector<A> p(end);
  std::vector<A> o(s.D, A{0});
  A max = -std::numeric_limits<A>::infinity();
  for (int64_t j = begin; j < end; ++j) {
    A& x = p[j];
    x = u.score(dot<A>(q, k + u.k_at(b, j, kv), s.D));
    max = std::max(max, x);
  }
  A sum{0};
  for (int64_t j = begin; j < end; ++j) sum += (p[j] = std::exp(p[j] - max));
  for (int64_t j = begin; j < end; ++j) {
    const A w = p[j] / sum * static_cast<A>(u.kept(row, h, i, j));
    const T* v_j = v + u.k_at(b, j, kv);
    for (int64_t d = 0; d < s.D; ++d) o[d] += w * static_cast<A>(v_j[d]);
  }
  T* out = a.out[0].as<T>() + u.o_at(b, i, h);
  for (int64_t d = 0; d < s.D; ++d) out[d] = static_cast<T>(o[d]);
  a.out[1].as<A>()[(b * s.H + h) * s.S + i] = end > 0 ? max + std::log(sum) : max;
}

template <class A>
A element(const Tensor& t, int64_t i) {
  return t.type.dtype == DType::kF64 ? static_cast<A>(t.as<double>()[i])
                                     : static_cast<A>(t.as<float>()[i]);
}

template <class T>
struct GradSums {
  std::vector<Accum<T>> dk, dv;
};

template <class T>
void reference_grad_row(const AttentionSetup& u, const KernelArgs& a, int64_t b, int64_t h,
                        int64_t i, GradSums<T>& sums) {
  using A = Accum<T>;
  const AttentionShape& s = u.s;
  const int64_t row = u.row(a, b);
  const int64_t kv = h / s.group();
  const int64_t at = u.o_at(b, i, h);
  const T* q = s.part<T>(a.in, 0) + u.q_at(b, i, h);
  const T* dy = a.in[u.in.dy].as<T>() + at;
  const int64_t stat = (b * s.H + h) * s.S + i;
  const A lse = element<A>(a.in[u.in.lse], stat);
  A delta = dot<A>(a.in[u.in.o].as<T>() + at, dy, s.D);
  if (u.in.dlse != AttentionInputs::kNone) delta -= element<A>(a.in[u.in.dlse], stat);
  std::vector<A> dq(s.D, A{0});
  for (int64_t j = u.begin(s.T, i); j < u.end(s.T, i); ++j) {
    const T* k = s.part<T>(a.in, 1) + u.k_at(b, j, kv);
    const T* v = s.part<T>(a.in, 2) + u.k_at(b, j, kv);
    const A scale = static_cast<A>(u.scale);
    const A score = u.score(dot<A>(q, k, s.D));
    const A p = std::exp(score - lse);
    const A kept = static_cast<A>(u.kept(row, h, i, j));
    const A ds = scale * p * (kept * dot<A>(dy, v, s.D) - delta) * u.slope(score);
    A* dk = sums.dk.data() + j * s.D;
    A* dv = sums.dv.data() + j * s.D;
    for (int64_t d = 0; d < s.D; ++d) {
      dq[d] += ds * static_cast<A>(k[d]);
      dk[d] += ds * static_cast<A>(q[d]);
      dv[d] += kept * p * static_cast<A>(dy[d]);
    }
  }
  T* out = s.part<T>(a.out, 0) + u.q_at(b, i, h);
  for (int64_t d = 0; d < s.D; ++d) out[d] = static_cast<T>(dq[d]);
}

template <class T>
void reference_grad_head(const AttentionSetup& u, const KernelArgs& a, int64_t b, int64_t kv) {
  const AttentionShape& s = u.s;
  GradSums<T> sums;
  sums.dk.assign(s.T * s.D, {});
  sums.dv.assign(s.T * s.D, {});
  for (int64_t h = kv * s.group(); h < (kv + 1) * s.group(); ++h) {
    for (int64_t i = 0; i < s.S; ++i) reference_grad_row<T>(u, a, b, h, i, sums);
  }
  for (int64_t j = 0; j < s.T; ++j) {
    for (int64_t d = 0; d < s.D; ++d) {
      const auto from = static_cast<size_t>(j * s.D + d);
      s.part<T>(a.out, 1)[u.k_at(b, j, kv) + d] = static_cast<T>(sums.dk[from]);
      s.part<T>(a.out, 2)[u.k_at(b, j, kv) + d] = static_cast<T>(sums.dv[from]);
    }
  }
}

}  // namespace

// Calls `make` for an element type that the fast kernels take.
template <class Make>
Kernel by_fast_float(DType dtype, Make&& make) {
  if (dtype == DType::kBF16) return make.template operator()<BF16>();
  return make.template operator()<float>();
}

Kernel prepare(const Attention& op, const KernelTypes& types, std::string_view variant) {
  const AttentionSetup u(op, op.inputs(), types);
  if (variant != kCpuReference.name) {
    return by_fast_float(types.in[0].dtype, [u]<class T>() -> Kernel {
      if (fast::is_decode(u)) return [u](const KernelArgs& a) { fast::decode<T>(u, a); };
      return [u](const KernelArgs& a) { fast::forward<T>(u, a); };
    });
  }
  return by_float(types.in[0].dtype, [u]<class T>() -> Kernel {
    return [u](const KernelArgs& a) {
      const AttentionShape& s = u.s;
      parallel_rows(s.B * s.H * s.S, [&](int64_t r) {
        reference_row<T>(u, a, r / (s.H * s.S), r / s.S % s.H, r % s.S);
      });
    };
  });
}

Kernel prepare(const AttentionGrad& op, const KernelTypes& types, std::string_view variant) {
  const AttentionSetup u(op.forward, op.inputs(), types);
  if (variant != kCpuReference.name) {
    return by_fast_float(types.in[0].dtype, [u]<class T>() -> Kernel {
      return [u](const KernelArgs& a) { fast::backward<T>(u, a); };
    });
  }
  return by_float(types.in[0].dtype, [u]<class T>() -> Kernel {
    return [u](const KernelArgs& a) {
      parallel_rows(u.s.B * u.s.K,
                    [&](int64_t r) { reference_grad_head<T>(u, a, r / u.s.K, r % u.s.K); });
    };
  });
}

}  // namespace tokamak::cpu
