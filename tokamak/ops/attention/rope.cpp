#include "tokamak/ops/attention/rope.h"

#include <cmath>

namespace tokamak {
namespace {

constexpr double kTwoPi = 6.283185307179586;

double scaled(double frequency, const RopeScaling& s) {
  if (s.kind == RopeScaling::Kind::kNone) return frequency;
  const double turns = s.original_max_position_embeddings * frequency / kTwoPi;
  if (turns < s.low_freq_factor) return frequency / s.factor;
  if (turns > s.high_freq_factor) return frequency;
  const double smooth = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return (1.0 - smooth) * frequency / s.factor + smooth * frequency;
}

void require_heads(std::string_view op, const Rope& rope, const TensorType& x,
                   const TensorType& positions) {
  TOK_REQUIRE(x.dims.size() == 4 && is_float(x.dtype) && x.dims[3] % 2 == 0,
              "{}: x wants float [batch, sequence, heads, an even head_dim], got {}", op,
              to_string(x));
  TOK_REQUIRE(positions.dtype == DType::kI32 && positions.dims == Dims({x.dims[0], x.dims[1]}),
              "{}: positions want int32[{}, {}], got {}", op, x.dims[0], x.dims[1],
              to_string(positions));
  TOK_REQUIRE(rope.theta > 0.0, "{}: theta is {}, wanted a positive number", op, rope.theta);
  const RopeScaling& s = rope.scaling;
  if (s.kind == RopeScaling::Kind::kLlama3) {
    TOK_REQUIRE(s.factor > 0.0 && s.original_max_position_embeddings > 0.0 &&
                    s.high_freq_factor > s.low_freq_factor,
                "{}: wanted factor {} and original_max_position_embeddings {} above 0, "
                "high_freq_factor {} above low_freq_factor {}",
                op, s.factor, s.original_max_position_embeddings, s.high_freq_factor,
                s.low_freq_factor);
  }
}

}  // namespace

std::vector<double> rope_frequencies(int64_t head_dim, double theta, const RopeScaling& scaling) {
  std::vector<double> frequencies;
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    const double exponent = static_cast<double>(2 * i) / static_cast<double>(head_dim);
    frequencies.push_back(scaled(std::pow(theta, -exponent), scaling));
  }
  return frequencies;
}

Types Rope::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 2, 2);
  require_heads(kName, *this, in[0], in[1]);
  TOK_REQUIRE(num_turned >= 0 && num_turned <= in[0].dims[2],
              "rope: {} of {} heads are to be turned", num_turned, in[0].dims[2]);
  return {in[0]};
}

std::vector<Strategy> Rope::place(std::span<const TensorType>) const {
  std::vector<Strategy> all{replicate(2, 1),
                            {.in = {cut(0), cut(0)}, .out = {cut(0)}},
                            {.in = {cut(1), cut(1)}, .out = {cut(1)}}};
  if (num_turned == 0) all.push_back({.in = {cut(2), kReplicated}, .out = {cut(2)}});
  return all;
}

std::vector<Value> Rope::gradient(Graph& g, const Node& n, std::span<const Value> dy) const {
  Rope back = *this;
  back.inverse = !inverse;
  return {g.apply(back, {dy[0], n.in[1]})};
}

// This is the cost in place, where only the heads that are turned count.
Cost Rope::cost(std::span<const TensorType> in, std::span<const TensorType>) const {
  TensorType x = in[0];
  if (num_turned > 0) x.dims[2] = num_turned;
  return memory_cost(Types{x, in[1]}, Types{x}, 3.0);
}

std::string Rope::describe() const {
  std::string text = fmt::format("theta={}", theta);
  if (scaling.kind == RopeScaling::Kind::kLlama3) {
    text += fmt::format(" llama3(factor={} low={} high={} original={})", scaling.factor,
                        scaling.low_freq_factor, scaling.high_freq_factor,
                        scaling.original_max_position_embeddings);
  }
  if (num_turned > 0) text += fmt::format(" of the first {} heads", num_turned);
  return inverse ? text + " inverse" : text;
}

Types RopeConcat::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 2, 5);
  const size_t num_parts = in.size() - 1;
  TOK_REQUIRE(num_turned >= 0 && static_cast<size_t>(num_turned) <= num_parts,
              "rope_concat: {} of {} inputs are to be turned", num_turned, num_parts);
  TensorType out = in[0];
  int64_t heads = 0;
  for (const TensorType& x : in.first(num_parts)) {
    require_heads(kName, rope, x, in.back());
    TOK_REQUIRE(x.dtype == in[0].dtype && x.dims[3] == in[0].dims[3],
                "rope_concat: parts differ: {} and {}", to_string(in[0]), to_string(x));
    heads += x.dims[2];
  }
  out.dims = {in[0].dims[0], in[0].dims[1], heads * in[0].dims[3]};
  return {out};
}

std::vector<Strategy> RopeConcat::place(std::span<const TensorType> in) const {
  std::vector<Strategy> all{replicate(in.size(), 1)};
  for (const int d : {0, 1})
    all.push_back({.in = std::vector<Shard>(in.size(), cut(d)), .out = {cut(d)}});
  return all;
}

Cost RopeConcat::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  Cost cost = memory_cost(in, out, 0.0);
  for (const TensorType& x : in.first(num_turned))
    cost.flops += 3.0 * static_cast<double>(x.numel());
  return cost;
}

std::string RopeConcat::describe() const {
  return fmt::format("{} of the first {}", rope.describe(), num_turned);
}

}  // namespace tokamak
