#include "tokamak/models/rope_config.h"

#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "tokamak/core/error.h"
#include "tokamak/models/family.h"

namespace tokamak {
namespace {

using Kind = RopeScaling::Kind;

constexpr std::array<std::pair<std::string_view, Kind>, 6> kTypes{{{"default", Kind::kNone},
                                                                   {"linear", Kind::kLinear},
                                                                   {"dynamic", Kind::kDynamic},
                                                                   {"yarn", Kind::kYarn},
                                                                   {"longrope", Kind::kLongRope},
                                                                   {"llama3", Kind::kLlama3}}};

Kind kind_of(std::string_view type, std::string_view what, std::string_view key) {
  for (const auto& [name, kind] : kTypes) {
    if (name == type) return kind;
  }
  fail(
      "{}: \"{}\": rope_type \"{}\" is not supported, only default, linear, dynamic, yarn, "
      "longrope and llama3",
      what, key, type);
}

std::string_view name_of(Kind kind) {
  for (const auto& [name, known] : kTypes) {
    if (known == kind) return name;
  }
  return "";
}

// The rest of the members, where a type cannot do without.
class Members {
 public:
  Members(const HfFields& config, const HfFields& rope, std::string_view type)
      : config_(config), rope_(rope), type_(type) {}

  double positive(const std::string& key) const {
    const double value = rope_.number_or(key, 0.0);
    TOK_REQUIRE(value > 0.0 && std::isfinite(value),
                "{}: rope_type \"{}\" wants \"{}\" above 0, got {}", rope_.what(), type_, key,
                value);
    return value;
  }

  double original_positions(const ModelSpec& c) const {
    constexpr const char* kKey = "original_max_position_embeddings";
    const double own = rope_.positive_or(kKey, static_cast<double>(c.max_seq_len));
    return config_.positive_or(kKey, own);
  }

  std::vector<double> factors(const std::string& key, int64_t pairs) const {
    std::vector<double> all = rope_.numbers(key);
    TOK_REQUIRE(static_cast<int64_t>(all.size()) == pairs,
                "{}: \"{}\": wanted {} numbers, one for each pair of a head, got {}", rope_.what(),
                key, pairs, all.size());
    return all;
  }

 private:
  const HfFields& config_;
  const HfFields& rope_;
  std::string_view type_;
};

double yarn_scale(double factor, double times) {
  return factor <= 1.0 ? 1.0 : 0.1 * times * std::log(factor) + 1.0;
}

double yarn_attention(const HfFields& rope, double factor) {
  if (rope.has("attention_factor")) return rope.number_or("attention_factor", 1.0);
  const double mscale = rope.number_or("mscale", 0.0);
  const double mscale_all_dim = rope.number_or("mscale_all_dim", 0.0);
  if (mscale == 0.0 || mscale_all_dim == 0.0) return yarn_scale(factor, 1.0);
  return yarn_scale(factor, mscale) / yarn_scale(factor, mscale_all_dim);
}

double longrope_attention(const HfFields& rope, double factor, double original) {
  if (rope.has("attention_factor")) return rope.number_or("attention_factor", 1.0);
  return factor <= 1.0 ? 1.0 : std::sqrt(1.0 + std::log(factor) / std::log(original));
}

RopeScaling read_scaling(const HfFields& f, const HfFields& rope, const ModelSpec& c, Kind kind) {
  const Members of(f, rope, name_of(kind));
  RopeScaling s{.kind = kind};
  const auto longest = static_cast<double>(c.max_seq_len);
  switch (kind) {
    case Kind::kNone:
      break;
    case Kind::kLinear:
      s.factor = of.positive("factor");
      break;
    case Kind::kDynamic:
      s.factor = of.positive("factor");
      s.original_max_position_embeddings = longest;
      break;
    case Kind::kYarn:
      s.original_max_position_embeddings = of.original_positions(c);
      s.factor =
          rope.has("factor") ? of.positive("factor") : longest / s.original_max_position_embeddings;
      s.attention_factor = yarn_attention(rope, s.factor);
      // transformers takes 0 for absent.
      s.beta_fast = rope.number_or("beta_fast", 0.0);
      s.beta_slow = rope.number_or("beta_slow", 0.0);
      if (s.beta_fast == 0.0) s.beta_fast = 32.0;
      if (s.beta_slow == 0.0) s.beta_slow = 1.0;
      s.truncate = rope.flag_or("truncate", true);
      break;
    case Kind::kLongRope:
      s.original_max_position_embeddings = of.original_positions(c);
      s.factor =
          rope.has("factor") ? of.positive("factor") : longest / s.original_max_position_embeddings;
      s.attention_factor = longrope_attention(rope, s.factor, s.original_max_position_embeddings);
      s.short_factor = of.factors("short_factor", c.head_dim / 2);
      s.long_factor = of.factors("long_factor", c.head_dim / 2);
      break;
    case Kind::kLlama3:
      s.original_max_position_embeddings = of.original_positions(c);
      s.factor = of.positive("factor");
      s.low_freq_factor = rope.positive_or("low_freq_factor", 1.0);
      s.high_freq_factor = rope.positive_or("high_freq_factor", 4.0);
      break;
  }
  return s;
}

// Where one rotation is written. Beside `rope_scaling` only the theta of `rope_parameters` counts.
struct RopeMembers {
  const HfFields& in;  ///< of `parameters`
  std::string parameters;
  std::string scaling;  ///< a member of config.json; empty: there is none
  std::string theta;    ///< a member of config.json
  double default_theta;
};

std::string type_of(const HfFields& rope, const std::string& key) {
  const std::string type = rope.text_or("type", "");
  const std::string rope_type = rope.text_or("rope_type", type);
  TOK_REQUIRE(type.empty() || type == rope_type,
              "{}: \"{}\": \"type\" is \"{}\", but \"rope_type\" is \"{}\": keep one of them",
              rope.what(), key, type, rope_type);
  TOK_REQUIRE(!rope_type.empty() || !rope.has("factor"),
              "{}: \"{}\": there is a \"factor\", but no \"rope_type\"", rope.what(), key);
  return rope_type.empty() ? "default" : rope_type;
}

// Returns rope_theta. All members that say it must agree, since readers take one or the other.
double theta_of(const HfFields& f, const RopeMembers& m, bool is_scaled) {
  std::optional<double> theta;
  if (is_scaled && f.inside(m.scaling).has("rope_theta"))
    theta = f.inside(m.scaling).positive_or("rope_theta", 1.0);
  const double outside = f.positive_or(m.theta, theta.value_or(m.default_theta));
  TOK_REQUIRE(!theta || outside == *theta,
              "{}: \"{}\" is {}, but \"{}\" says {}: write the same into both", f.what(), m.theta,
              outside, m.scaling, *theta);
  if (!m.in.has_members(m.parameters)) return outside;
  const double inside = m.in.inside(m.parameters).positive_or("rope_theta", outside);
  TOK_REQUIRE((!f.has(m.theta) && !is_scaled) || inside == outside,
              "{}: \"{}\" is {}, but \"{}\" says {}: write the same into both", f.what(), m.theta,
              outside, m.parameters, inside);
  return inside;
}

RotarySpec read_rotation(const HfFields& f, const RopeMembers& m, const ModelSpec& c) {
  const bool is_scaled = !m.scaling.empty() && f.has_members(m.scaling);
  RotarySpec rotation{.theta = theta_of(f, m, is_scaled)};
  if (is_scaled && m.in.has_members(m.parameters)) m.in.inside(m.parameters).ignore_all();
  const HfFields& from = is_scaled ? f : m.in;
  const std::string& key = is_scaled ? m.scaling : m.parameters;
  if (!from.has_members(key)) return rotation;
  const HfFields rope = from.inside(key);
  rope.must_be("partial_rotary_factor", 1.0);
  rotation.scaling = read_scaling(f, rope, c, kind_of(type_of(rope, key), f.what(), key));
  return rotation;
}

void set_rope(ModelSpec& c, const RotarySpec& rope) {
  c.rope.theta = rope.theta;
  c.rope.scaling = rope.scaling;
}

}  // namespace

void read_rope(const HfFields& f, ModelSpec& c) {
  f.must_be("partial_rotary_factor", 1.0);
  if (f.has("rope_parameters")) {
    for (const char* key : {"full_attention", "sliding_attention"})
      TOK_REQUIRE(!f.inside("rope_parameters").has(key),
                  "{}: \"rope_parameters\": {} rotates all layers alike, got \"{}\"", f.what(),
                  c.family->architecture, key);
  }
  set_rope(c, read_rotation(f, {f, "rope_parameters", "rope_scaling", "rope_theta", 10000.0}, c));
}

void read_rope_by_layer(const HfFields& f, ModelSpec& c, double full_theta, double window_theta) {
  f.must_be("partial_rotary_factor", 1.0);
  const Json none = Json::object();
  const HfFields both = f.has("rope_parameters") ? f.inside("rope_parameters") : HfFields(none, "");
  for (const char* key : {"rope_type", "rope_theta"})
    TOK_REQUIRE(!both.has(key),
                "{}: \"rope_parameters\": wanted those of \"full_attention\" and of "
                "\"sliding_attention\", got \"{}\"",
                f.what(), key);
  set_rope(c,
           read_rotation(f, {both, "full_attention", "rope_scaling", "rope_theta", full_theta}, c));
  c.attention.window_rope =
      read_rotation(f, {both, "sliding_attention", "", "rope_local_base_freq", window_theta}, c);
}

namespace {

OrderedJson rope_json(const RotarySpec& rope) {
  const RopeScaling& s = rope.scaling;
  OrderedJson json;
  if (s.kind != Kind::kNone) json["factor"] = s.factor;
  if (s.kind == Kind::kLlama3) {
    json["high_freq_factor"] = s.high_freq_factor;
    json["low_freq_factor"] = s.low_freq_factor;
  }
  if (s.kind == Kind::kYarn) {
    json["beta_fast"] = s.beta_fast;
    json["beta_slow"] = s.beta_slow;
    json["truncate"] = s.truncate;
  }
  if (s.kind == Kind::kLongRope) {
    json["short_factor"] = s.short_factor;
    json["long_factor"] = s.long_factor;
  }
  if (s.kind == Kind::kYarn || s.kind == Kind::kLongRope)
    json["attention_factor"] = s.attention_factor;
  if (s.kind == Kind::kYarn || s.kind == Kind::kLongRope || s.kind == Kind::kLlama3) {
    json["original_max_position_embeddings"] =
        static_cast<int64_t>(s.original_max_position_embeddings);
  }
  json["rope_theta"] = rope.theta;
  json["rope_type"] = name_of(s.kind);
  return json;
}

}  // namespace

void write_rope(const ModelSpec& c, OrderedJson& json) {
  OrderedJson full = rope_json({.theta = c.rope.theta, .scaling = c.rope.scaling});
  json["rope_parameters"] = full;
  if (c.attention.window_rope) {
    json["rope_parameters"] = {{"full_attention", full},
                               {"sliding_attention", rope_json(*c.attention.window_rope)}};
    json["rope_local_base_freq"] = c.attention.window_rope->theta;
  }
  json["rope_theta"] = c.rope.theta;
  if (c.rope.scaling.kind == Kind::kNone) return;
  // transformers 4 takes the original length of LongRoPE from here alone.
  if (c.rope.scaling.kind == Kind::kLongRope)
    json["original_max_position_embeddings"] = full["original_max_position_embeddings"];
  full.erase("rope_theta");
  json["rope_scaling"] = full;
}

}  // namespace tokamak
