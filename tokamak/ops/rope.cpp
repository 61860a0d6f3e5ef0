#include "tokamak/ops/rope.h"

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
  TOK_REQUIRE(in[0].dims.size() == 4 && is_float(in[0].dtype) && in[0].dims[3] % 2 == 0,
              "rope: x wants float [batch, sequence, heads, an even head_dim], got {}",
              to_string(in[0]));
  TOK_REQUIRE(in[1].dtype == DType::kI32 && in[1].dims == Dims({in[0].dims[0], in[0].dims[1]}),
              "rope: positions want int32[{}, {}], got {}", in[0].dims[0], in[0].dims[1],
              to_string(in[1]));
  TOK_REQUIRE(theta > 0.0, "rope: theta is {}, wanted a positive number", theta);
  if (scaling.kind == RopeScaling::Kind::kLlama3) {
    TOK_REQUIRE(scaling.factor > 0.0 && scaling.original_max_position_embeddings > 0.0 &&
                    scaling.high_freq_factor > scaling.low_freq_factor,
                "rope: wanted factor {} and original_max_position_embeddings {} above 0, "
                "high_freq_factor {} above low_freq_factor {}",
                scaling.factor, scaling.original_max_position_embeddings, scaling.high_freq_factor,
                scaling.low_freq_factor);
  }
  return {in[0]};
}

std::vector<Strategy> Rope::place(std::span<const TensorType>) const {
  return {replicate(2, 1),
          {.in = {cut(0), cut(0)}, .out = {cut(0)}},
          {.in = {cut(1), cut(1)}, .out = {cut(1)}},
          {.in = {cut(2), kReplicated}, .out = {cut(2)}}};
}

std::vector<Value> Rope::gradient(Graph& g, const Node& n, std::span<const Value> dy) const {
  Rope back = *this;
  back.inverse = !inverse;
  return {g.apply(back, {dy[0], n.in[1]})};
}

Cost Rope::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return memory_cost(in, out, 3.0);
}

std::string Rope::describe() const {
  std::string text = fmt::format("theta={}", theta);
  if (scaling.kind == RopeScaling::Kind::kLlama3) {
    text += fmt::format(" llama3(factor={} low={} high={} original={})", scaling.factor,
                        scaling.low_freq_factor, scaling.high_freq_factor,
                        scaling.original_max_position_embeddings);
  }
  return inverse ? text + " inverse" : text;
}

}  // namespace tokamak
