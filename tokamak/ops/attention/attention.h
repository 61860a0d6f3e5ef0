// Softmax attention over grouped heads, and its gradient.
#pragma once

#include "tokamak/ops/rules.h"

namespace tokamak {

// B batch, S queries, T keys, H query heads, K key-value heads (H a multiple of K; query head h
// reads head h / (H / K)), D head dim.

/// Extents of an attention's operands and where q, k and v lie.
struct AttentionShape {
  int64_t B = 0, S = 0, T = 0, H = 0, K = 0, D = 0;
  bool is_packed = false;  ///< q, k and v are heads of one operand [B, S, H + 2 K, D]

  /// Returns the shape for q [B, S, H, D] and k [B, T, K, D].
  static AttentionShape of(const TensorType& q, const TensorType& k);

  int64_t group() const { return H / K; }

  /// Elements from the heads of one token to those of the next.
  int64_t q_step() const { return (is_packed ? H + 2 * K : H) * D; }

  int64_t kv_step() const { return (is_packed ? H + 2 * K : K) * D; }

  /// Returns where q, k or v (0, 1, 2) begins in a packed operand.
  int64_t packed_begin(size_t which) const {
    return which == 0 ? 0 : (H + (which == 2 ? K : 0)) * D;
  }

  /// Finds q, k or v, or their gradients, among operands that begin with them.
  template <class T, class Operands>
  T* part(const Operands& operands, size_t which) const {
    if (!is_packed) return operands[which].template as<T>();
    return operands[0].template as<T>() + packed_begin(which);
  }

  friend auto operator<=>(const AttentionShape&, const AttentionShape&) = default;

  /// Returns the number of (query, key) pairs that a head uses, with `window` as in Attention.
  double pairs(bool causal, int64_t window) const;
};

/// Which of its inputs an attention or its gradient has, and where: those that hold q, k and v come
/// first, the others follow in the order of the members.
struct AttentionInputs {
  static constexpr size_t kNone = SIZE_MAX;
  size_t num_parts = 3;  ///< inputs that hold q, k and v: 1 where they are packed
  size_t o = kNone, lse = kNone, dy = kNone;
  size_t length = kNone;
  size_t rows = kNone;  ///< of dropout
  size_t dlse = kNone;
  size_t count = 3;

  /// Returns input `index` of `in`, or an invalid value if there is none.
  static Value at(std::span<const Value> in, size_t index);
};

/// Returns the most bytes that cuDNN's plans ask for as scratch.
int64_t cudnn_attention_bytes(const AttentionShape& shape, bool backward, bool deterministic);

/// Numbers (head, query, key) for dropout whatever the extents, below 2^16 heads and 2^24 tokens.
constexpr uint64_t attention_element(int64_t h, int64_t s, int64_t t) {
  return (static_cast<uint64_t>(h) << 48U) | (static_cast<uint64_t>(s) << 24U) |
         static_cast<uint64_t>(t);
}

/// o[b, s, h] = sum_t P[s, t] v[b, t], P = softmax(scale q . k), lse[b, h, s] = log of the sum.
/// Scores may be capped before the softmax.
///
/// Inputs q [B, S, H, D], k and v [B, T, K, D]; then, if `has_length`, i32 [1] or [B]: how many
/// of the T slots are valid, read at each run; if `dropout_p` > 0, i64 [B]: each sample's index
/// in the run. Outputs o like q, lse [B, H, S] (fp32; fp64 from fp64). With L valid keys (T without
/// a length), query s has position L - S + s, and if causal it sees the keys up to its position, of
/// which a `window` > 0 leaves the last `window`; a query that sees none gives o = 0, lse = -inf.
/// Dropout keeps P where the sample's element attention_element(first_head + h, s, t) is kept
/// (ops/elementwise/dropout.h) and divides by 1 - p; lse ignores it.
///
/// With `packed_kv_heads` = K > 0 one input [B, S, H + 2 K, D] takes the place of q, k and v: its
/// heads are those of q, then of k, then of v, as one matmul for all three makes them.
struct Attention {
  static constexpr std::string_view kName = "attention";
  float scale = 0.0F;  ///< 0: 1 / sqrt(D)
  bool causal = true;
  int64_t window = 0;  ///< 0: all keys up to a query's position
  double cap = 0.0;    ///< of a scaled score x, which becomes cap tanh(x / cap); 0: none
  bool has_length = false;
  double dropout_p = 0.0;
  uint64_t seed = 0;
  uint64_t stream = 0;     ///< differs between the sites of a model
  int64_t first_head = 0;  ///< of this shard, for the mask, as are the next two
  int64_t first_query = 0;
  int64_t first_key = 0;
  ContextMethod context = ContextMethod::kAllGather;
  bool zigzag = true;  ///< where the sequence is cut over n ranks: rank r has chunks r and 2 n - 1
                       ///< - r of 2 n, else chunk r of n
  bool beside_matmuls = false;  ///< the collectives of a cut sequence run on kContextStream, and
                                ///< attention reads slices of one sample in place
  int64_t packed_kv_heads = 0;

  AttentionShape shape(std::span<const TensorType> in) const;
  AttentionInputs inputs() const;
  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  std::vector<Value> gradient(Graph& g, int32_t self, std::span<const Value> dy) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;
  std::optional<AnyOp> localize(const LocalContext& context) const;
  std::string describe() const;
  static std::span<const Variant> variants();
};

/// dq, dk, dv of the `forward` op without a length, from q, k, v, o, lse, do, then rows if it has
/// dropout, then the cotangent of lse if `has_dlse`. P is recomputed from lse. If `forward` is
/// packed, q, k, v are one input and dq, dk, dv one output.
struct AttentionGrad {
  static constexpr std::string_view kName = "attention_grad";
  Attention forward;
  bool has_dlse = false;

  AttentionInputs inputs() const;
  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;
  std::optional<AnyOp> localize(const LocalContext& context) const;
  std::string describe() const;
  static std::span<const Variant> variants();
};

}  // namespace tokamak
