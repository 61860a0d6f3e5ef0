#include "tokamak/ops/attention/rope.h"

#include <algorithm>
#include <cmath>

namespace tokamak {
namespace {

constexpr double kTwoPi = 6.283185307179586;

using Kind = RopeScaling::Kind;

double scaled_as_llama3(double frequency, const RopeScaling& s) {
  const double turns = s.original_max_position_embeddings * frequency / kTwoPi;
  if (turns < s.low_freq_factor) return frequency / s.factor;
  if (turns > s.high_freq_factor) return frequency;
  const double smooth = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return (1.0 - smooth) * frequency / s.factor + smooth * frequency;
}

// Grows theta so that the slowest pair's wavelength grows with the length.
double dynamic_theta(int64_t head_dim, double theta, const RopeScaling& s) {
  const double original = s.original_max_position_embeddings;
  const double length = std::max(static_cast<double>(s.length), original);
  const auto dim = static_cast<double>(head_dim);
  return theta * std::pow(s.factor * length / original - (s.factor - 1.0), dim / (dim - 2.0));
}

// How much each pair is interpolated, from 0 to 1.
class YarnRamp {
 public:
  YarnRamp(int64_t head_dim, double theta, const RopeScaling& s) {
    const auto dim = static_cast<double>(head_dim);
    // The pair that turns this many times over the original context.
    const auto pair_of = [&](double turns) {
      return dim * std::log(s.original_max_position_embeddings / (turns * kTwoPi)) /
             (2.0 * std::log(theta));
    };
    first_ = pair_of(s.beta_fast);
    last_ = pair_of(s.beta_slow);
    if (s.truncate) {
      first_ = std::floor(first_);
      last_ = std::ceil(last_);
    }
    first_ = std::max(first_, 0.0);
    last_ = std::min(last_, dim - 1.0);
    if (first_ == last_) last_ += 0.001;
  }

  double at(int64_t pair) const {
    return std::clamp((static_cast<double>(pair) - first_) / (last_ - first_), 0.0, 1.0);
  }

 private:
  double first_ = 0.0;
  double last_ = 0.0;
};

void require_scaling(std::string_view op, const RopeScaling& s, int64_t head_dim) {
  if (s.kind == Kind::kNone) return;
  TOK_REQUIRE(
      s.factor > 0.0 && s.original_max_position_embeddings > 0.0 && s.attention_factor > 0.0,
      "{}: wanted factor {}, original_max_position_embeddings {} and attention_factor {} "
      "above 0",
      op, s.factor, s.original_max_position_embeddings, s.attention_factor);
  if (s.kind == Kind::kLlama3) {
    TOK_REQUIRE(s.high_freq_factor > s.low_freq_factor,
                "{}: wanted high_freq_factor {} above low_freq_factor {}", op, s.high_freq_factor,
                s.low_freq_factor);
  } else if (s.kind == Kind::kDynamic) {
    TOK_REQUIRE(head_dim > 2, "{}: dynamic scaling wants a head_dim above 2, got {}", op, head_dim);
  } else if (s.kind == Kind::kYarn) {
    TOK_REQUIRE(s.beta_slow > 0.0 && s.beta_fast > s.beta_slow,
                "{}: wanted beta_fast {} above beta_slow {} above 0", op, s.beta_fast, s.beta_slow);
  } else if (s.kind == Kind::kLongRope) {
    for (const auto& [name, factors] :
         {std::pair("short_factor", &s.short_factor), std::pair("long_factor", &s.long_factor)}) {
      TOK_REQUIRE(static_cast<int64_t>(factors->size()) == head_dim / 2,
                  "{}: wanted {} numbers in {}, one for each pair of a head, got {}", op,
                  head_dim / 2, name, factors->size());
      for (const double factor : *factors)
        TOK_REQUIRE(factor > 0.0, "{}: wanted numbers above 0 in {}, got {}", op, name, factor);
    }
  }
}

std::string describe_scaling(const RopeScaling& s) {
  const double original = s.original_max_position_embeddings;
  switch (s.kind) {
    case Kind::kNone:
      return "";
    case Kind::kLinear:
      return fmt::format(" linear(factor={})", s.factor);
    case Kind::kDynamic:
      return fmt::format(" dynamic(factor={} original={} length={})", s.factor, original, s.length);
    case Kind::kYarn:
      return fmt::format(" yarn(factor={} original={} fast={} slow={} attention={})", s.factor,
                         original, s.beta_fast, s.beta_slow, s.attention_factor);
    case Kind::kLongRope:
      return fmt::format(" longrope(original={} length={} attention={})", original, s.length,
                         s.attention_factor);
    case Kind::kLlama3:
      return fmt::format(" llama3(factor={} low={} high={} original={})", s.factor,
                         s.low_freq_factor, s.high_freq_factor, original);
  }
  return "";
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
  require_scaling(op, rope.scaling, x.dims[3]);
}

}  // namespace

std::vector<double> rope_frequencies(int64_t head_dim, double theta, const RopeScaling& s) {
  if (s.kind == Kind::kDynamic) theta = dynamic_theta(head_dim, theta, s);
  const bool is_long = static_cast<double>(s.length) > s.original_max_position_embeddings;
  const YarnRamp ramp(head_dim, theta, s);
  std::vector<double> frequencies;
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    const double exponent = static_cast<double>(2 * i) / static_cast<double>(head_dim);
    double f = std::pow(theta, -exponent);
    if (s.kind == Kind::kLinear) f /= s.factor;
    if (s.kind == Kind::kYarn) f = f / s.factor * ramp.at(i) + f * (1.0 - ramp.at(i));
    if (s.kind == Kind::kLongRope) f /= (is_long ? s.long_factor : s.short_factor)[i];
    if (s.kind == Kind::kLlama3) f = scaled_as_llama3(f, s);
    frequencies.push_back(f);
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

std::vector<Value> Rope::gradient(Graph& g, int32_t self, std::span<const Value> dy) const {
  const Node& n = g.node(self);
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
  std::string text = fmt::format("theta={}", theta) + describe_scaling(scaling);
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
