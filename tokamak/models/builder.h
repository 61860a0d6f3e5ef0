// The parts from which the builders of model families are made.
#pragma once

#include <array>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tokamak/core/random.h"
#include "tokamak/models/model.h"
#include "tokamak/ops/attention/attention.h"
#include "tokamak/ops/attention/cache_append.h"
#include "tokamak/ops/elementwise/add.h"
#include "tokamak/ops/elementwise/dropout.h"
#include "tokamak/ops/layout/reshape.h"
#include "tokamak/ops/matmul/linear.h"
#include "tokamak/ops/vocab/embedding.h"

namespace tokamak {

// B batch, S sequence, D embed, H heads, K kv heads, F mlp, V vocabulary.
using enum LogicalAxis;

/// The code that builders share: projections, initialization, dropout, and attention over heads.
class Builder {
 public:
  Builder(Graph& graph, Parameters& parameters, const ModelSpec& config, const ModelInputs& inputs,
          uint64_t seed)
      : g_(graph), p_(parameters), c_(config), in_(inputs), seed_(seed) {}

 protected:
  static constexpr Init kZeros{.kind = Init::Kind::kZeros};
  static constexpr Init kOnes{.kind = Init::Kind::kOnes};

  static Init normal(double std, double cut = 0.0) {
    return {.kind = Init::Kind::kNormal, .std = std, .cut = cut};
  }

  // torch.nn.init.trunc_normal_ cuts at +-2 absolute.
  static Init truncated(double std) { return normal(std, 2.0 / std); }

  Init weight_init() const {
    return c_.init == InitRecipe::kTorchtitan ? truncated(0.02) : normal(c_.initializer_range);
  }

  // Returns the Init of a residual projection in block `layer`. torchtitan's recipe scales it down
  // with depth; in others the family chooses `std`.
  Init residual_init(int64_t layer, double std) const {
    if (c_.init != InitRecipe::kTorchtitan) return normal(std);
    return truncated(0.02 / std::sqrt(2.0 * static_cast<double>(layer + 1)));
  }

  Value project(const std::string& name, Value x, int64_t out, int64_t in, Axes axes, Init init,
                bool bias) {
    const LogicalAxis out_axis = axes[0];
    const Value w = p_.weight(name + ".weight", {out, in}, std::move(axes), init);
    const Value b = bias ? p_.weight(name + ".bias", {out}, {out_axis}, kZeros) : Value{};
    return g_.apply(Linear{}, {x, w, b});
  }

  // Returns the queries, keys and values of h, by heads.
  std::array<Value, 3> projected_heads(const std::string& name, Value h, bool bias) {
    const int64_t q_dim = c_.num_heads * c_.head_dim;
    const int64_t kv_dim = c_.num_kv_heads * c_.head_dim;
    const auto part = [&](const char* which, int64_t out, LogicalAxis axis) {
      const Value x = project(name + which, h, out, c_.dim, {axis, kEmbed}, weight_init(), bias);
      return g_.apply(Reshape{.dims = {0, 0, -1, c_.head_dim}}, {x});
    };
    const Value q = part("q_proj", q_dim, kHeads);
    const Value k = part("k_proj", kv_dim, kKvHeads);
    return {q, k, part("v_proj", kv_dim, kKvHeads)};
  }

  Value attend(Value q_BSHd, Value k_BSKd, Value v_BSKd, int64_t layer) {
    Attention op{.scale = attention_scale(layer),
                 .causal = true,
                 .window = window_of(c_, layer),
                 .cap = c_.attention.score_cap};
    std::vector<Value> in{q_BSHd, k_BSKd, v_BSKd};
    if (in_.cache != nullptr) {
      const auto i = static_cast<size_t>(layer);
      in[1] = cached(in_.cache->keys[i], k_BSKd);
      in[2] = cached(in_.cache->values[i], v_BSKd);
      op.has_length = true;
      in.push_back(in_.cache->length);
    } else if (c_.dropout.attention > 0.0 && in_.rows.valid()) {
      op.dropout_p = c_.dropout.attention;
      op.seed = seed_;
      op.stream = stream_of(fmt::format("attention.{}", layer));
      in.push_back(in_.rows);
    }
    const Value o_BSHd = g_.add(op, in)[0];
    return g_.apply(Reshape{.dims = {0, 0, -1}}, {o_BSHd});
  }

  // Returns what the cache holds with `added`, for the sequences that `added` continues.
  Value cached(StateId state, Value added) {
    const Value all = g_.read(state);
    const KvCache& cache = *in_.cache;
    if (!cache.row.valid()) return g_.apply(CacheAppend{}, {all, added, cache.position});
    const Dims dims = g_.type(all).dims;  // [B, T, K, D]
    const Value joined = g_.apply(Reshape{.dims = {1, dims[0] * dims[1], dims[2], dims[3]}}, {all});
    const Value appended = g_.apply(CacheAppend{}, {joined, added, cache.position});
    const Value texts = g_.apply(Reshape{.dims = {dims[0], -1}}, {appended});
    const Value text = g_.apply(Embedding{}, {cache.row, texts});
    return g_.apply(Reshape{.dims = {1, dims[1], dims[2], dims[3]}}, {text});
  }

  // Returns what scores are multiplied by; 0 stands for 1 / sqrt(head_dim).
  float attention_scale(int64_t layer) const {
    const auto head_dim = static_cast<double>(c_.head_dim);
    const double scalar = c_.attention.query_scalar > 0.0 ? c_.attention.query_scalar : head_dim;
    if (c_.attention.scaled && !c_.attention.scale_by_layer && scalar == head_dim) return 0.0F;
    const double by_dim = c_.attention.scaled ? 1.0 / std::sqrt(scalar) : 1.0;
    return static_cast<float>(c_.attention.scale_by_layer ? by_dim / static_cast<double>(layer + 1)
                                                          : by_dim);
  }

  Value dropout(Value x, double p, const std::string& where) {
    if (p == 0.0 || !in_.rows.valid()) return x;
    return g_.apply(Dropout{.p = p, .seed = seed_, .stream = stream_of(where)},
                    {x, in_.rows, in_.positions});
  }

  Value residual(Value x, Value branch, const std::string& where) {
    return g_.apply(Add{}, {x, dropout(branch, c_.dropout.residual, where)});
  }

  Label block_label(int64_t layer) const {
    Label label = g_.label;
    label.block = static_cast<int32_t>(layer);
    label.module = static_cast<int32_t>(layer) + 1;
    return label;
  }

  // Returns the label of the final norm, which follows the blocks.
  Label norm_label() const { return module_label(c_.num_layers + 1); }

  // Uses the embedding's table as the head where they are tied.
  ModelOutputs with_head(Value hidden, Value table, Init init) {
    if (c_.tied) return {.hidden = hidden, .head = table, .logit_cap = c_.logit_cap};
    const LabelScope scope(g_, module_label(head_module(c_)));
    return {.hidden = hidden,
            .head = p_.weight("lm_head.weight", {c_.vocab_size, c_.dim}, {kVocab, kEmbed}, init),
            .logit_cap = c_.logit_cap};
  }

  Label module_label(int64_t module) const {
    Label label = g_.label;
    label.module = static_cast<int32_t>(module);
    return label;
  }

  Graph& g_;
  Parameters& p_;
  const ModelSpec& c_;
  const ModelInputs& in_;
  uint64_t seed_;
};

}  // namespace tokamak
