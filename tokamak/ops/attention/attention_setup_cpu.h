// The setup that fast and plain attention kernels share.
#pragma once

#include <algorithm>
#include <cmath>

#include "tokamak/exec/kernel.h"
#include "tokamak/ops/attention/attention.h"
#include "tokamak/ops/elementwise/dropout.h"

namespace tokamak::cpu {

/// One call's constants, for both directions; the length is read when it runs.
struct AttentionSetup {
  AttentionShape s;
  Attention op;
  AttentionInputs in;
  double scale = 0.0;
  uint64_t key = 0;
  uint32_t threshold = 0;

  /// `inputs` are those of `attention`, or of its gradient.
  AttentionSetup(const Attention& attention, const AttentionInputs& inputs,
                 const KernelTypes& types)
      : s(attention.shape(types.in)),
        op(attention),
        in(inputs),
        scale(op.scale != 0.0F ? static_cast<double>(op.scale)
                               : 1.0 / std::sqrt(static_cast<double>(s.D))),
        key(dropout_key(op.seed, op.stream)),
        threshold(dropout_threshold(op.dropout_p)) {}

  int64_t length(const KernelArgs& a, int64_t b) const {
    if (!op.has_length) return s.T;
    const Tensor& lengths = a.in[in.length];
    return std::clamp<int64_t>(lengths.as<int32_t>()[lengths.numel() == 1 ? 0 : b], 0, s.T);
  }

  // Returns the first key that query i does not see.
  int64_t end(int64_t length, int64_t i) const {
    return op.causal ? std::clamp<int64_t>(length - s.S + i + 1, 0, length) : length;
  }

  // Returns the first key that query i sees.
  int64_t begin(int64_t length, int64_t i) const {
    return op.window > 0 ? std::max<int64_t>(end(length, i) - op.window, 0) : 0;
  }

  // Returns the score of a query and a key with this product, as the softmax takes it.
  template <class A>
  A score(A product) const {
    const A x = static_cast<A>(scale) * product;
    const A cap = static_cast<A>(op.cap);
    return cap > A{0} ? cap * std::tanh(x / cap) : x;
  }

  // Returns the derivative of a score by the uncapped one.
  template <class A>
  A slope(A score) const {
    const A share = op.cap > 0.0 ? score / static_cast<A>(op.cap) : A{0};
    return A{1} - share * share;
  }

  // Returns the factor that dropout multiplies P by.
  double kept(int64_t row, int64_t h, int64_t i, int64_t j) const {
    if (op.dropout_p == 0.0) return 1.0;
    const bool keeps =
        dropout_keeps(key, threshold, static_cast<uint64_t>(row),
                      attention_element(op.first_head + h, op.first_query + i, op.first_key + j));
    return keeps ? 1.0 / (1.0 - op.dropout_p) : 0.0;
  }

  // Returns the offset in q and its gradient.
  int64_t q_at(int64_t b, int64_t i, int64_t h) const {
    return (b * s.S + i) * s.q_step() + h * s.D;
  }

  // Returns the offset in k, v and their gradients.
  int64_t k_at(int64_t b, int64_t j, int64_t kv) const {
    return (b * s.T + j) * s.kv_step() + kv * s.D;
  }

  // Returns the offset in o and its gradient.
  int64_t o_at(int64_t b, int64_t i, int64_t h) const { return ((b * s.S + i) * s.H + h) * s.D; }

  // Returns the index in the run of sample b, for dropout.
  int64_t row(const KernelArgs& a, int64_t b) const {
    return in.rows == AttentionInputs::kNone ? 0 : a.in[in.rows].as<int64_t>()[b];
  }
};

}  // namespace tokamak::cpu
