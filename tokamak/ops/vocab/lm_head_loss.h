// The language-model head and its loss, without ever holding the logits of all tokens.
#pragma once

#include "tokamak/ops/rules.h"

namespace tokamak {

/// Mean cross entropy of softmax(x w^T) against labels, by chunks of tokens: a composite. With a
/// `cap`, logits are capped before the softmax (ops/elementwise/softcap.h).
///
/// x [.., D], w [V, D], labels i32 [..], scale f32 [1] -> loss f64 [1] (accumulates), dx like x, dw
/// [V, D] fp32 (fp64 from fp64; accumulates); or only the loss. loss is the sum over labels other
/// than `ignore_index`, times scale. The gradients are made in the forward pass, so the loss must
/// be what is differentiated: its cotangent is taken to be 1 whatever is given. With a vocabulary
/// cut over `group`, w holds the rows from `first_column` on; ranks exchange the statistics of
/// tokens, or the logits of a chunk where `gather_logits`, and dx is this rank's term of a sum over
/// the group. GEMM libraries want rows of whole 16-byte words: where a rank's logits have no such
/// rows and `column_multiple` is given, zero rows after w pad their columns to a multiple of it.
struct LmHeadLoss {
  static constexpr std::string_view kName = "lm_head_loss";
  int64_t chunk_rows = 0;  ///< tokens per chunk; 0: those that chunk_bytes of logits hold
  int64_t chunk_bytes = int64_t{32} << 20U;
  int32_t ignore_index = -100;
  int64_t column_multiple = 1;
  double cap = 0.0;  ///< 0: none
  bool with_gradient = true;
  bool gather_logits = false;  ///< torchtitan's disable_loss_parallel
  /// Marks the matmuls that it expands to (Linear::low_precision). Chunks are then shorter, so that
  /// the quantized operands take no memory beyond that of the logits alone, unless `long_chunks`.
  bool low_precision = false;
  bool long_chunks = false;
  CommGroup group;
  int64_t first_column = 0;
  std::vector<int64_t> columns;  ///< of each member of the group

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  std::vector<Value> gradient(Graph& g, int32_t self, std::span<const Value> dy) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;
  std::vector<int> accumulates() const;
  std::vector<Value> expand(Graph& g, const Node& n) const;
  std::optional<AnyOp> localize(const LocalContext& context) const;
  std::string describe() const;

  static std::span<const Variant> variants() { return {}; }
};

}  // namespace tokamak
