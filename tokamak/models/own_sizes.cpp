#include "tokamak/models/own_sizes.h"

#include <algorithm>

#include "tokamak/core/error.h"
#include "tokamak/models/family.h"
#include "tokamak/models/hf_fields.h"

namespace tokamak {
namespace {

constexpr int64_t kMlpUnit = 64;

// An MLP with the same ratio to the model's width.
int64_t scaled_mlp(int64_t mlp, int64_t from, int64_t to) {
  const int64_t exact = (mlp * to + from / 2) / from;
  return std::max((exact + kMlpUnit / 2) / kMlpUnit * kMlpUnit, kMlpUnit);
}

// Returns the keys that decide how wide a head is, as far as they are set: "model.dim = 100".
std::string width_text(const OwnSizes& own) {
  if (own.head_dim) return fmt::format("model.head_dim = {}", *own.head_dim);
  if (!own.heads) return fmt::format("model.dim = {}", own.dim.value_or(0));
  const std::string heads = fmt::format("model.heads = {}", *own.heads);
  return own.dim ? fmt::format("{}, model.dim = {}", heads, *own.dim) : heads;
}

void set_width(const OwnSizes& own, ModelSpec& c) {
  const int64_t old_dim = c.dim;
  c.dim = own.dim.value_or(c.dim);
  c.mlp_dim = own.mlp_dim.value_or(own.dim ? scaled_mlp(c.mlp_dim, old_dim, c.dim) : c.mlp_dim);
}

void set_heads(const OwnSizes& own, ModelSpec& c) {
  c.num_heads = own.heads.value_or(c.num_heads);
  if (own.head_dim) {
    c.head_dim = *own.head_dim;
  } else if (own.dim || own.heads) {
    TOK_REQUIRE(c.dim % c.num_heads == 0, "{}: {} heads do not divide {}; set model.head_dim",
                width_text(own), c.num_heads, c.dim);
    c.head_dim = c.dim / c.num_heads;
  }
  const bool has_pairs = learned_positions(c) == 0;
  TOK_REQUIRE(!has_pairs || c.head_dim % 2 == 0,
              "{}: the width of a head, {}, is odd, but rotary positions need pairs",
              width_text(own), c.head_dim);
  c.num_kv_heads = own.kv_heads.value_or(
      c.num_heads % c.num_kv_heads == 0 && !c.family->learns_positions ? c.num_kv_heads
                                                                       : c.num_heads);
  TOK_REQUIRE(c.num_heads % c.num_kv_heads == 0,
              "model.kv_heads = {}: wanted a divisor of the {} heads", c.num_kv_heads, c.num_heads);
  if (!c.family->learns_positions) return;
  TOK_REQUIRE(c.num_kv_heads == c.num_heads,
              "model.kv_heads = {}: {} has one key-value head for each head, {}", c.num_kv_heads,
              c.name, c.num_heads);
  TOK_REQUIRE(c.head_dim * c.num_heads == c.dim, "model.head_dim = {}: heads of {} are {} wide",
              c.head_dim, c.name, c.dim / c.num_heads);
}

void resize_windows(const OwnSizes& own, ModelSpec& c) {
  if (own.window) {
    TOK_REQUIRE(c.family->has_windows,
                "model.window = {}: {} has no sliding window; mistral, qwen2, qwen3, gemma2 and "
                "gemma3 have one",
                *own.window, c.name);
    set_windows(c, *own.window);
    return;
  }
  if (c.attention.full_every > 0 && !c.attention.windows.empty()) {
    set_windows(c, *std::ranges::max_element(c.attention.windows));
    return;
  }
  if (c.attention.windows.empty() ||
      static_cast<int64_t>(c.attention.windows.size()) == c.num_layers)
    return;
  const bool is_same = std::ranges::count(c.attention.windows, c.attention.windows[0]) ==
                       std::ssize(c.attention.windows);
  TOK_REQUIRE(is_same,
              "model.layers = {}: the windows of {} layers differ; set model.window or write the "
              "layer_types into config.json",
              c.num_layers, c.attention.windows.size());
  c.attention.windows.assign(c.num_layers, c.attention.windows[0]);
}

void require_bounds(const OwnSizes& own) {
  const auto require = [](const char* key, std::optional<int64_t> value, int64_t most) {
    TOK_REQUIRE(value.value_or(1) <= most, "model.{} = {}: wanted at most {}", key, *value, most);
  };
  require("layers", own.layers, kMostLayers);
  require("dim", own.dim, kMostExtent);
  require("heads", own.heads, kMostExtent);
  require("kv_heads", own.kv_heads, kMostExtent);
  require("head_dim", own.head_dim, kMostExtent);
  require("mlp_dim", own.mlp_dim, kMostExtent);
  require("vocab", own.vocab_size, kMostVocab);
  require("window", own.window, kMostPositions);
}

}  // namespace

void apply_sizes(const OwnSizes& own, ModelSpec& spec) {
  if (!own.any()) return;
  require_bounds(own);
  spec.num_layers = own.layers.value_or(spec.num_layers);
  spec.vocab_size = own.vocab_size.value_or(spec.vocab_size);
  set_width(own, spec);
  set_heads(own, spec);
  resize_windows(own, spec);
  const auto pairs = static_cast<size_t>(spec.head_dim / 2);
  const auto require_pairs = [&](const RopeScaling& scaling) {
    TOK_REQUIRE(scaling.kind != RopeScaling::Kind::kLongRope || scaling.long_factor.size() == pairs,
                "{}: heads are {} wide, but the longrope of config.json is for {} pairs of a head",
                width_text(own), spec.head_dim, scaling.long_factor.size());
  };
  require_pairs(spec.rope.scaling);
  if (spec.attention.window_rope) require_pairs(spec.attention.window_rope->scaling);
  spec.flavor += ", own sizes";
  spec.hf_config.clear();
}

}  // namespace tokamak
