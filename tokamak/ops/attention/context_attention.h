// Causal attention over a sequence that is cut over a group of ranks (context parallel): composites
// of ordinary attention and communication.
#pragma once

#include "tokamak/ops/attention/attention.h"

namespace tokamak {

/// Takes the operands and gives the results of `attention` on this rank's part of the sequence,
/// [B, S, ..] of [B, n S, ..] over the n members of `group`; `attention` says how ranks hold the
/// sequence (zigzag) and by which method they see each other's keys:
///
/// all-gather: keys and values of all ranks are put into natural order; each of this rank's chunks
/// of queries takes the keys up to its end.
///
/// ring: keys and values go round, and MergeAttention merges each source's result. In zigzag rank r
/// has chunks r and 2 n - 1 - r: all queries take the front chunk of a source before this rank; the
/// back chunk of the queries takes both of a source after it. (Liu, Zaharia, Abbeel 2023.) Without
/// zigzag, ranks would wait for the last one in every round, and with a window they would send
/// mostly keys that nobody sees, so keys are all-gathered in both cases.
///
/// Ulysses: an all-to-all gives each rank the whole sequence of a part of the heads, another takes
/// the result back. (Jacobs et al. 2023.) If ranks outnumber key-value heads, they share heads.
struct ContextAttention {
  static constexpr std::string_view kName = "context_attention";
  Attention attention;
  CommGroup group;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;
  std::vector<Value> expand(Graph& g, const Node& n) const;
  std::string describe() const;

  static std::span<const Variant> variants() { return {}; }
};

/// Its gradient takes the operands of AttentionGrad. Sums of dk and dv travel in fp32.
struct ContextAttentionGrad {
  static constexpr std::string_view kName = "context_attention_grad";
  Attention attention;
  CommGroup group;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;
  std::vector<Value> expand(Graph& g, const Node& n) const;
  std::string describe() const;

  static std::span<const Variant> variants() { return {}; }
};

/// Merges attention over each of two sets of keys into attention over both. Inputs o [B, S, H, D]
/// and lse [B, H, S] over the first set, fp32 (fp64 from fp64); o [B, P, H, D] and lse [B, H, P] of
/// queries `first` to `first` + P over the second. Outputs o and lse of all queries, which may take
/// the storage of the first inputs.
struct MergeAttention {
  static constexpr std::string_view kName = "merge_attention";
  int64_t first = 0;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;
  std::string describe() const;

  std::vector<Alias> aliases() const { return {{.out = 0, .in = 0}, {.out = 1, .in = 1}}; }

  static std::span<const Variant> variants() { return one_kernel(); }
};

}  // namespace tokamak
