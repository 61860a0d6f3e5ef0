// The three methods of context_attention.h, as graphs.
#pragma once

#include "tokamak/ops/attention/attention.h"

namespace tokamak {

/// The setup of every method: `attention` over a sequence of which each of the group's ranks has
/// `S` tokens.
struct Context {
  Attention attention;
  CommGroup group;
  int64_t S = 0;

  int64_t chunk() const { return attention.zigzag ? S / 2 : S; }

  /// Returns the chunks of the whole sequence that member `rank` holds, in its order.
  std::vector<int> chunks(int rank) const {
    if (!attention.zigzag) return {rank};
    return {rank, 2 * group.size - 1 - rank};
  }

  /// Returns the order for Split and Join between the members' tokens end to end and natural order.
  std::vector<int> order() const;

  std::vector<int64_t> sizes() const { return std::vector<int64_t>(group.size, S); }
};

/// q, k, v [B, S, heads, D]; rows where there is dropout; o, lse, do for a gradient.
struct Operands {
  Value q, k, v;
  Value rows;
  Value o, lse, dy;

  static Operands of(std::span<const Value> in, const AttentionInputs& at) {
    return {.q = in[0],
            .k = in[1],
            .v = in[2],
            .rows = AttentionInputs::at(in, at.rows),
            .o = AttentionInputs::at(in, at.o),
            .lse = AttentionInputs::at(in, at.lse),
            .dy = AttentionInputs::at(in, at.dy)};
  }

  std::vector<Value> forward() const { return {q, k, v, rows}; }

  std::vector<Value> backward() const { return {q, k, v, o, lse, dy, rows}; }
};

/// Returns x[.., begin:end, ..] along `dim`. With Attention::beside_matmuls this is a view, not a
/// copy, if the slice is contiguous, as are the tokens of one sample.
Value slice(Graph& g, const Context& c, Value x, int dim, int64_t begin, int64_t end);
Value concat(Graph& g, int dim, std::vector<Value> parts);
Value cast(Graph& g, Value x, DType dtype);

/// These return {o, lse} and {dq, dk, dv}. The ring needs zigzag.
std::vector<Value> gathered_attention(Graph& g, const Context& c, const Operands& x);
std::vector<Value> gathered_attention_grad(Graph& g, const Context& c, const Operands& x);
std::vector<Value> ring_attention(Graph& g, const Context& c, const Operands& x);
std::vector<Value> ring_attention_grad(Graph& g, const Context& c, const Operands& x);
std::vector<Value> ulysses_attention(Graph& g, const Context& c, const Operands& x);
std::vector<Value> ulysses_attention_grad(Graph& g, const Context& c, const Operands& x);

}  // namespace tokamak
