#include "tokamak/parallel/float8/quantized_gathers.h"

#include <algorithm>

#include "tokamak/ops/comm/collective.h"
#include "tokamak/ops/elementwise/cast.h"
#include "tokamak/ops/layout/reshape.h"
#include "tokamak/ops/layout/slice_rows.h"
#include "tokamak/ops/matmul/linear.h"

namespace tokamak {
namespace {

// Whether input `k` of `n` is the weight of a quantized matmul.
bool is_quantized_operand(const Node& n, size_t k) {
  return k == 1 && (is_marked<Linear>(n) || is_marked<LinearGradInput>(n));
}

}  // namespace

QuantizedGathers::QuantizedGathers(const Graph& graph, const Float8Recipe& recipe,
                                   const SharedScales& weights_of, const CommGroup& owners,
                                   Float8Table& table, Rewriter& rewriter)
    : graph_(graph), recipe_(recipe), owners_(owners), table_(table), rewriter_(rewriter) {
  if (!recipe.gathers_quantized()) return;
  find_parts();
  refuse_other_readers();
  refuse_divided_scales(weights_of);
  number_sites(weights_of);
  refuse_divided_merges();
}

void QuantizedGathers::find_parts() {
  for (int32_t i = 0; i < graph_.size(); ++i) {
    const Node& n = graph_.node(i);
    if (const auto* gather = n.as<AllGather>(); gather != nullptr && gather->dim < 0) {
      const Node& from = graph_.producer(n.in[0]);
      const Value master = from.as<Cast>() != nullptr ? from.in[0] : n.in[0];
      const Node& leaf = graph_.producer(master);
      if (!leaf.is_leaf() || graph_.states()[leaf.state].kind != StateKind::kParameter ||
          !n.accumulations.empty())
        continue;
      const bool rounds = !recipe_.from_master && master != n.in[0];
      parts_[{i, 0}] = {.bucket = buckets_.size(), .end = n.out[0].numel()};
      buckets_.push_back({.gather = i,
                          .master = master,
                          .rounds_to = rounds ? n.out[0].dtype : DType::kF32,
                          .slice = graph_.type(master).numel()});
    } else if (const auto* rows = n.as<SliceRows>(); rows != nullptr && parts_.contains(n.in[0])) {
      const Part& whole = parts_.at(n.in[0]);
      const int64_t row = graph_.type(n.in[0]).numel() / graph_.type(n.in[0]).dims[0];
      parts_[{i, 0}] = {.bucket = whole.bucket,
                        .begin = whole.begin + rows->begin * row,
                        .end = whole.begin + rows->end * row};
    } else if (n.as<Reshape>() != nullptr && parts_.contains(n.in[0])) {
      parts_[{i, 0}] = parts_.at(n.in[0]);
    }
  }
}

std::map<Value, int32_t> QuantizedGathers::matmuls_of_weights() const {
  std::map<Value, int32_t> matmuls;
  for (int32_t i = 0; i < graph_.size(); ++i) {
    const Node& n = graph_.node(i);
    if (n.as<Linear>() != nullptr && is_quantized_operand(n, 1)) matmuls.emplace(n.in[1], i);
  }
  return matmuls;
}

void QuantizedGathers::refuse_other_readers() {
  const auto refuse = [&](Value v) {
    if (const auto part = parts_.find(v); part != parts_.end())
      buckets_[part->second.bucket].is_refused = true;
  };
  for (int32_t i = 0; i < graph_.size(); ++i) {
    const Node& n = graph_.node(i);
    if (!parts_.contains({i, 0})) {
      for (size_t k = 0; k < n.in.size(); ++k) {
        if (!is_quantized_operand(n, k)) refuse(n.in[k]);
      }
    }
    for (const Accumulation& a : n.accumulations) refuse(a.into);
  }
  for (const Value v : graph_.roots) refuse(v);
}

bool QuantizedGathers::is_gathered(Value weight) const {
  const auto part = parts_.find(weight);
  return part != parts_.end() && !buckets_[part->second.bucket].is_refused;
}

// Weights that share a scale travel alike.
void QuantizedGathers::refuse_divided_scales(const SharedScales& weights_of) {
  for (bool changed = true; changed;) {
    changed = false;
    for (const auto& [weight, all] : weights_of) {
      if (!is_gathered(weight) ||
          std::all_of(all.begin(), all.end(), [&](Value other) { return is_gathered(other); }))
        continue;
      buckets_[parts_.at(weight).bucket].is_refused = true;
      changed = true;
    }
  }
}

// Numbers sites as the table has them, or as they lie, which is in one order on all owners.
void QuantizedGathers::number_sites(const SharedScales& weights_of) {
  std::vector<std::map<int64_t, Value>> lying(buckets_.size());
  for (const auto& [weight, all] : weights_of) {
    if (is_gathered(weight)) lying[parts_.at(weight).bucket][parts_.at(weight).begin] = weight;
  }
  const std::map<Value, int32_t> matmuls = matmuls_of_weights();
  std::map<Value, int64_t> site_of;  // by the first of weights that share it
  for (size_t b = 0; b < buckets_.size(); ++b) {
    for (const auto& [begin, weight] : lying[b]) {
      const Node& matmul = graph_.node(matmuls.at(weight));
      const std::string& module = matmul.as<Linear>()->module;
      const auto [site, is_new] = site_of.emplace(weights_of.at(weight).front(), num_sites_);
      if (is_new && recipe_.is_delayed()) {
        site->second = table_.weight_row(graph_, matmul.label.block, module);
      } else if (is_new) {
        ++num_sites_;
      }
      buckets_[b].modules.emplace(site->second, module);
      buckets_[b].ranges[begin] = {
          .begin = begin, .end = parts_.at(weight).end, .site = site->second};
    }
  }
  if (recipe_.is_delayed()) num_sites_ = table_.num_weights();
}

const QuantizedRange* QuantizedGathers::range_at(const Part& part, int64_t at) const {
  const auto& ranges = buckets_[part.bucket].ranges;
  const auto after = ranges.upper_bound(at);
  if (after == ranges.begin()) return nullptr;
  const QuantizedRange& range = std::prev(after)->second;
  return at < range.end ? &range : nullptr;
}

// A weight that only the backward merges is of one scale, too.
void QuantizedGathers::refuse_divided_merges() {
  for (int32_t i = 0; i < graph_.size(); ++i) {
    const Node& n = graph_.node(i);
    if (n.in.size() < 2 || !is_quantized_operand(n, 1) || !is_gathered(n.in[1])) continue;
    const Part& part = parts_.at(n.in[1]);
    const QuantizedRange* first = range_at(part, part.begin);
    for (int64_t at = part.begin; at < part.end;) {
      const QuantizedRange* range = range_at(part, at);
      TOK_CHECK(range != nullptr && range->site == first->site,
                "a quantized matmul reads elements {} to {} of a bucket, of several scales",
                part.begin, part.end);
      at = range->end;
    }
  }
}

bool QuantizedGathers::replaces(int32_t i) const {
  return is_gathered({i, 0});
}

void QuantizedGathers::put(int32_t i) {
  const Node& n = graph_.node(i);
  const Part& part = parts_.at({i, 0});
  if (Bucket& bucket = buckets_[part.bucket]; bucket.gather == i) return put_gather(bucket);
  const Value view = rewriter_.to.add_node(n.rules, n.op, {rewriter_(n.in[0])})[0];
  rewriter_.map({i, 0}, emitted(view, n));
}

Value QuantizedGathers::emitted(Value v, const Node& like) {
  Node& made = rewriter_.to.mutable_node(v.node);
  made.is_dropped = like.is_dropped;
  made.when = like.when;
  return v;
}

void QuantizedGathers::put_gather(Bucket& bucket) {
  take_maxima();
  const Node& n = graph_.node(bucket.gather);
  Graph& to = rewriter_.to;
  const QuantizeRanges op{.ranges = ranges_of_slice(bucket),
                          .power_of_two = recipe_.power_of_two,
                          .rounds_to = bucket.rounds_to,
                          .is_delayed = recipe_.is_delayed(),
                          .has_amax = table_.has_update()};
  std::vector<Value> in{rewriter_(bucket.master), maxima_};
  if (op.is_delayed) in.push_back(table_.weight_rows(to));
  const std::vector<Value> made = to.add(op, std::move(in));
  emitted(made[0], n);
  for (const auto& [site, module] : bucket.modules) {
    bucket.inverse[site] = one_of(made[1], QuantizeRanges::kStride * site, n);
    if (op.has_amax) table_.stage(to, module, Float8Role::kW, one_of(made[2], site, n));
  }
  const Value all = emitted(to.apply(*n.as<AllGather>(), {made[0]}), n);
  to.mutable_node(all.node).stream = n.stream;
  rewriter_.map({bucket.gather, 0}, all);
}

Value QuantizedGathers::one_of(Value values, int64_t at, const Node& like) {
  const SliceRows one{.begin = at, .end = at + 1};
  return emitted(rewriter_.to.apply(one, {values}), like);
}

void QuantizedGathers::take_maxima() {
  if (maxima_.valid()) return;
  Graph& to = rewriter_.to;
  const LabelScope scope(to, {.phase = Phase::kUnshard, .stage = to.label.stage});
  if (table_.has_scales()) {
    maxima_ = table_.no_maxima(to, num_sites_);
    return;
  }
  for (const Bucket& bucket : buckets_) {
    if (bucket.is_refused) continue;
    const AmaxRanges op{.ranges = ranges_of_slice(bucket),
                        .num_sites = num_sites_,
                        .rounds_to = bucket.rounds_to,
                        .is_gated = recipe_.is_delayed()};
    std::vector<Value> in{rewriter_(bucket.master)};
    if (maxima_.valid()) in.push_back(maxima_);
    if (op.is_gated) in.push_back(table_.weight_rows(to));
    maxima_ = to.apply(op, std::move(in));
  }
  if (owners_.size > 1)
    maxima_ = to.apply(AllReduce{.group = owners_, .op = ReduceOp::kMax}, {maxima_});
}

// Neighbours of one site become one range.
std::vector<QuantizedRange> QuantizedGathers::ranges_of_slice(const Bucket& bucket) const {
  const int64_t begin = graph_.node(bucket.gather).as<AllGather>()->group.rank * bucket.slice;
  std::vector<QuantizedRange> mine;
  for (const auto& [unused, range] : bucket.ranges) {
    const QuantizedRange part{.begin = std::max(range.begin - begin, int64_t{0}),
                              .end = std::min(range.end - begin, bucket.slice),
                              .site = range.site};
    if (part.begin >= part.end) continue;
    if (!mine.empty() && mine.back().end == part.begin && mine.back().site == part.site) {
      mine.back().end = part.end;
    } else {
      mine.push_back(part);
    }
  }
  return mine;
}

std::optional<QuantizedValues> QuantizedGathers::find(Value weight) const {
  if (!is_gathered(weight)) return std::nullopt;
  const Part& part = parts_.at(weight);
  const QuantizedRange* range = range_at(part, part.begin);
  return QuantizedValues{.values = rewriter_(weight),
                         .inverse = buckets_[part.bucket].inverse.at(range->site)};
}

}  // namespace tokamak
