#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tokamak/cpu/dispatch.h"
#include "tokamak/ops/attention.h"
#include "tokamak/ops/dropout.h"

namespace tokamak::cpu {
namespace {

// What both directions know about one call; the length is read when it runs.
struct Setup {
  AttentionShape s;
  Attention op;
  double scale = 0.0;
  uint64_t key = 0;
  uint32_t threshold = 0;

  Setup(const Attention& attention, const KernelTypes& types)
      : s(AttentionShape::of(types.in[0], types.in[1])),
        op(attention),
        scale(op.scale != 0.0F ? static_cast<double>(op.scale)
                               : 1.0 / std::sqrt(static_cast<double>(s.D))),
        key(dropout_key(op.seed, op.stream)),
        threshold(dropout_threshold(op.dropout_p)) {}

  int64_t length(const KernelArgs& a, int64_t b) const {
    if (!op.has_length) return s.T;
    return std::clamp<int64_t>(a.in[3].as<int32_t>()[a.in[3].numel() == 1 ? 0 : b], 0, s.T);
  }

  // Query i sees the keys before this one.
  int64_t end(int64_t length, int64_t i) const {
    return op.causal ? std::clamp<int64_t>(length - s.S + i + 1, 0, length) : length;
  }

  // What dropout multiplies P by.
  double kept(int64_t row, int64_t h, int64_t i, int64_t j) const {
    if (op.dropout_p == 0.0) return 1.0;
    const int64_t e = ((op.first_head + h) * s.S + i) * s.T + j;
    const bool keeps =
        dropout_keeps(key, threshold, static_cast<uint64_t>(row), static_cast<uint64_t>(e));
    return keeps ? 1.0 / (1.0 - op.dropout_p) : 0.0;
  }

  int64_t q_at(int64_t b, int64_t i, int64_t h) const { return ((b * s.S + i) * s.H + h) * s.D; }

  int64_t k_at(int64_t b, int64_t j, int64_t kv) const { return ((b * s.T + j) * s.K + kv) * s.D; }
};

template <class A, class T>
A dot(const T* a, const T* b, int64_t n) {
  A sum{0};
  for (int64_t d = 0; d < n; ++d) sum += static_cast<A>(a[d]) * static_cast<A>(b[d]);
  return sum;
}

template <class T>
void reference_row(const Setup& u, const KernelArgs& a, int64_t b, int64_t h, int64_t i) {
  using A = Accum<T>;
  const AttentionShape& s = u.s;
  const int64_t end = u.end(u.length(a, b), i);
  const int64_t row = u.op.dropout_p > 0.0 ? a.in[3].as<int64_t>()[b] : 0;
  const int64_t kv = h / s.group();
  const T* q = a.in[0].as<T>() + u.q_at(b, i, h);
  const T* k = a.in[1].as<T>();
  const T* v = a.in[2].as<T>();
  std::vector<A> p(static_cast<size_t>(end));
  std::vector<A> o(static_cast<size_t>(s.D), A{0});
  A max = -std::numeric_limits<A>::infinity();
  for (int64_t j = 0; j < end; ++j) {
    A& x = p[static_cast<size_t>(j)];
    x = static_cast<A>(u.scale) * dot<A>(q, k + u.k_at(b, j, kv), s.D);
    max = std::max(max, x);
  }
  A sum{0};
  for (A& x : p) sum += (x = std::exp(x - max));
  for (int64_t j = 0; j < end; ++j) {
    const A w = p[static_cast<size_t>(j)] / sum * static_cast<A>(u.kept(row, h, i, j));
    const T* v_j = v + u.k_at(b, j, kv);
    for (int64_t d = 0; d < s.D; ++d) o[static_cast<size_t>(d)] += w * static_cast<A>(v_j[d]);
  }
  T* out = a.out[0].as<T>() + u.q_at(b, i, h);
  for (int64_t d = 0; d < s.D; ++d) out[d] = static_cast<T>(o[static_cast<size_t>(d)]);
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
void reference_grad_row(const Setup& u, const KernelArgs& a, int64_t b, int64_t h, int64_t i,
                        bool has_dlse, GradSums<T>& sums) {
  using A = Accum<T>;
  const AttentionShape& s = u.s;
  const int64_t row = u.op.dropout_p > 0.0 ? a.in[6].as<int64_t>()[b] : 0;
  const int64_t kv = h / s.group();
  const int64_t at = u.q_at(b, i, h);
  const T* q = a.in[0].as<T>() + at;
  const T* dy = a.in[5].as<T>() + at;
  const int64_t stat = (b * s.H + h) * s.S + i;
  const A lse = element<A>(a.in[4], stat);
  A delta = dot<A>(a.in[3].as<T>() + at, dy, s.D);
  if (has_dlse) delta -= element<A>(a.in.back(), stat);
  std::vector<A> dq(static_cast<size_t>(s.D), A{0});
  for (int64_t j = 0; j < u.end(s.T, i); ++j) {
    const T* k = a.in[1].as<T>() + u.k_at(b, j, kv);
    const T* v = a.in[2].as<T>() + u.k_at(b, j, kv);
    const A scale = static_cast<A>(u.scale);
    const A p = std::exp(scale * dot<A>(q, k, s.D) - lse);
    const A kept = static_cast<A>(u.kept(row, h, i, j));
    const A ds = scale * p * (kept * dot<A>(dy, v, s.D) - delta);
    A* dk = sums.dk.data() + j * s.D;
    A* dv = sums.dv.data() + j * s.D;
    for (int64_t d = 0; d < s.D; ++d) {
      dq[static_cast<size_t>(d)] += ds * static_cast<A>(k[d]);
      dk[d] += ds * static_cast<A>(q[d]);
      dv[d] += kept * p * static_cast<A>(dy[d]);
    }
  }
  T* out = a.out[0].as<T>() + at;
  for (int64_t d = 0; d < s.D; ++d) out[d] = static_cast<T>(dq[static_cast<size_t>(d)]);
}

template <class T>
void reference_grad_head(const Setup& u, const KernelArgs& a, int64_t b, int64_t kv,
                         bool has_dlse) {
  const AttentionShape& s = u.s;
  GradSums<T> sums;
  sums.dk.assign(static_cast<size_t>(s.T * s.D), {});
  sums.dv.assign(static_cast<size_t>(s.T * s.D), {});
  for (int64_t h = kv * s.group(); h < (kv + 1) * s.group(); ++h) {
    for (int64_t i = 0; i < s.S; ++i) reference_grad_row<T>(u, a, b, h, i, has_dlse, sums);
  }
  for (int64_t j = 0; j < s.T; ++j) {
    for (int64_t d = 0; d < s.D; ++d) {
      const auto from = static_cast<size_t>(j * s.D + d);
      a.out[1].as<T>()[u.k_at(b, j, kv) + d] = static_cast<T>(sums.dk[from]);
      a.out[2].as<T>()[u.k_at(b, j, kv) + d] = static_cast<T>(sums.dv[from]);
    }
  }
}

}  // namespace

Kernel prepare(const Attention& op, const KernelTypes& types, std::string_view) {
  return by_float(types.in[0].dtype, [u = Setup(op, types)]<class T>() -> Kernel {
    return [u](const KernelArgs& a) {
      const AttentionShape& s = u.s;
      parallel_rows(s.B * s.H * s.S, [&](int64_t r) {
        reference_row<T>(u, a, r / (s.H * s.S), r / s.S % s.H, r % s.S);
      });
    };
  });
}

Kernel prepare(const AttentionGrad& op, const KernelTypes& types, std::string_view) {
  const Setup u(op.forward, types);
  return by_float(types.in[0].dtype, [u, has_dlse = op.has_dlse]<class T>() -> Kernel {
    return [u, has_dlse](const KernelArgs& a) {
      parallel_rows(u.s.B * u.s.K, [&](int64_t r) {
        reference_grad_head<T>(u, a, r / u.s.K, r % u.s.K, has_dlse);
      });
    };
  });
}

}  // namespace tokamak::cpu
