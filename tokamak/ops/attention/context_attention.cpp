#include "tokamak/ops/attention/context_attention.h"

#include "tokamak/core/enum_array.h"
#include "tokamak/ops/attention/context_parts.h"

namespace tokamak {
namespace {

std::string describe_context(const Attention& a, const CommGroup& group) {
  constexpr EnumArray<ContextMethod, std::string_view, 3> kMethods{"all-gather", "ring", "ulysses"};
  return fmt::format("{}, {}{}, group {}, {} of {}", a.describe(), kMethods[a.context],
                     a.zigzag ? " zigzag" : "", group.id, group.rank, group.size);
}

void require_context(std::string_view op, const Attention& a, const CommGroup& group,
                     std::span<const TensorType> in) {
  const AttentionShape s = AttentionShape::of(in[0], in[1]);
  TOK_REQUIRE(a.causal && !a.has_length && s.S == s.T,
              "{}: wanted causal self-attention, got {} queries over {} keys", op, s.S, s.T);
  TOK_REQUIRE(!a.zigzag || s.S % 2 == 0, "{}: {} tokens on a rank are not two equal chunks", op,
              s.S);
  TOK_REQUIRE(a.context != ContextMethod::kUlysses || group.size <= s.H,
              "{}: context_parallel_degree = {}: Ulysses wants at most one rank for each of {} "
              "query heads; use allgather or alltoall rotation",
              op, group.size, s.H);
}

// Returns the cost of one rank's share of the pairs of the whole sequence.
Cost share(Cost cost, const CommGroup& group, int64_t S, int64_t window) {
  const AttentionShape local{.S = S, .T = S};
  const AttentionShape whole{.S = group.size * S, .T = group.size * S};
  cost.flops *= whole.pairs(true, window) / group.size / local.pairs(true, window);
  return cost;
}

// Where a window leaves little to each query, as where ranks would wait for the last one, keys are
// gathered instead of sent round.
ContextMethod method_of(const Attention& a) {
  const bool goes_round = a.zigzag && a.window == 0;
  return a.context == ContextMethod::kRing && !goes_round ? ContextMethod::kAllGather : a.context;
}

}  // namespace

Types ContextAttention::infer(std::span<const TensorType> in) const {
  Types out = attention.infer(in);
  require_context(kName, attention, group, in);
  return out;
}

std::vector<Strategy> ContextAttention::place(std::span<const TensorType> in) const {
  return {replicate(in.size(), 2)};
}

Cost ContextAttention::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return share(attention.cost(in, out), group, in[0].dims[1], attention.window);
}

std::vector<Value> ContextAttention::expand(Graph& g, const Node& n) const {
  const Operands x = Operands::of(n.in, attention.inputs());
  const Context context{.attention = attention, .group = group, .S = g.type(x.q).dims[1]};
  switch (method_of(attention)) {
    case ContextMethod::kAllGather:
      return gathered_attention(g, context, x);
    case ContextMethod::kRing:
      return ring_attention(g, context, x);
    case ContextMethod::kUlysses:
      return ulysses_attention(g, context, x);
  }
  return {};
}

std::string ContextAttention::describe() const {
  return describe_context(attention, group);
}

Types ContextAttentionGrad::infer(std::span<const TensorType> in) const {
  Types out = AttentionGrad{.forward = attention}.infer(in);
  require_context(kName, attention, group, in);
  return out;
}

std::vector<Strategy> ContextAttentionGrad::place(std::span<const TensorType> in) const {
  return {replicate(in.size(), 3)};
}

Cost ContextAttentionGrad::cost(std::span<const TensorType> in,
                                std::span<const TensorType> out) const {
  return share(AttentionGrad{.forward = attention}.cost(in, out), group, in[0].dims[1],
               attention.window);
}

std::vector<Value> ContextAttentionGrad::expand(Graph& g, const Node& n) const {
  const Operands x = Operands::of(n.in, AttentionGrad{.forward = attention}.inputs());
  const Context context{.attention = attention, .group = group, .S = g.type(x.q).dims[1]};
  switch (method_of(attention)) {
    case ContextMethod::kAllGather:
      return gathered_attention_grad(g, context, x);
    case ContextMethod::kRing:
      return ring_attention_grad(g, context, x);
    case ContextMethod::kUlysses:
      return ulysses_attention_grad(g, context, x);
  }
  return {};
}

std::string ContextAttentionGrad::describe() const {
  return describe_context(attention, group);
}

Types MergeAttention::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 4, 4);
  const Dims& o = in[0].dims;
  const Dims& part = in[2].dims;
  const bool fits = o.size() == 4 && part.size() == 4 && o[0] == part[0] && o[2] == part[2] &&
                    o[3] == part[3] && first >= 0 && first + part[1] <= o[1];
  TOK_REQUIRE(fits, "merge_attention: o is {}, its part from query {} is {}", to_string(in[0]),
              first, to_string(in[2]));
  const DType sums = in[0].dtype;
  TOK_REQUIRE((sums == DType::kF32 || sums == DType::kF64) && in[1].dtype == sums &&
                  in[3].dtype == sums && is_float(in[2].dtype),
              "merge_attention: wanted sums of float32 or float64, got o {}, lse {} and {}",
              name_of(sums), name_of(in[1].dtype), name_of(in[3].dtype));
  TOK_REQUIRE(
      in[1].dims == Dims({o[0], o[2], o[1]}) && in[3].dims == Dims({part[0], part[2], part[1]}),
      "merge_attention: lse is {} and {}, o is {} and {}", to_string(in[1].dims),
      to_string(in[3].dims), to_string(o), to_string(part));
  return {in[0], in[1]};
}

std::vector<Strategy> MergeAttention::place(std::span<const TensorType>) const {
  const auto alike = [](Shard o, Shard lse) {
    return Strategy{.in = {o, lse, o, lse}, .out = {o, lse}};
  };
  return {replicate(4, 2), alike(cut(0), cut(0)), alike(cut(2), cut(1))};
}

Cost MergeAttention::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  Cost cost = memory_cost(in, out, 0.0);
  cost.flops = 3.0 * static_cast<double>(in[2].numel());
  return cost;
}

std::string MergeAttention::describe() const {
  return first == 0 ? "" : fmt::format("from query {}", first);
}

}  // namespace tokamak
