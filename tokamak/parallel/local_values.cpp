#include "tokamak/parallel/local_values.h"

#include <utility>

#include "tokamak/core/error.h"
#include "tokamak/graph/streams.h"
#include "tokamak/parallel/reshard.h"

namespace tokamak {
namespace {

bool is_parameter_leaf(const Graph& global, Value v) {
  const Node& n = global.producer(v);
  return n.is_leaf() && global.states()[n.state].kind == StateKind::kParameter;
}

// The first entry is the value itself.
bool is_resharded(const std::vector<LocalValue>& have, const LocalValue& l) {
  return &l != &have.front();
}

bool is_scattered(const Placement& from, const Placement& to) {
  for (size_t a = 0; a < kNumPlacementAxes; ++a) {
    if (from[a].shard == kPartialSum && to[a].shard.is_cut()) return true;
  }
  return false;
}

double distance(const Placement& from, const Placement& to) {
  double cost = 0.0;
  for (size_t a = 0; a < kNumPlacementAxes; ++a) {
    if (from[a] == to[a]) continue;
    const Shard f = from[a].shard;
    const Shard t = to[a].shard;
    if (t == kPartialSum) return 1e30;
    if (f == kReplicated) continue;
    cost += f == kPartialSum && t == kReplicated ? 2.0 : 1.0;
    if (f.is_cut() && t.is_cut()) cost += 1.0;
  }
  return cost;
}

}  // namespace

LocalValues::LocalValues(const Graph& global, const std::vector<NodePlacement>& placements,
                         const RankContext& context, Graph& local)
    : global_(global),
      placements_(placements),
      context_(context),
      splits_backward_(context.options->pipeline.splits_backward()),
      g_(local) {}

bool is_weight(const Graph& global, Value v) {
  const Node& n = global.producer(v);
  if (n.is_leaf()) return is_parameter_leaf(global, v);
  return n.label.phase == Phase::kUnshard && n.in.size() == 1 && is_parameter_leaf(global, n.in[0]);
}

Value LocalValues::get(Value v, const Placement& want, int stage) {
  std::vector<LocalValue>& have = values_[v];
  const bool is_leaf = global_.producer(v).is_leaf();
  if (is_leaf && have.empty()) {
    have.push_back({.placement = placements_[v.node].out[0], .stage = -1, .value = leaf(v)});
  }
  TOK_CHECK(!have.empty(), "{} is used before it is made", global_.producer(v).rules->name);
  const LocalValue* from = nullptr;
  double least = 1e30;
  for (const LocalValue& l : have) {
    if (l.is_for_backward && g_.label.phase == Phase::kForward) continue;
    if (l.placement == want && (l.stage == stage || l.stage < 0 || !is_resharded(have, l)))
      return l.value;
    if (l.stage != stage && is_resharded(have, l)) continue;
    const double cost = distance(l.placement, want);
    if (cost < least) {
      least = cost;
      from = &l;
    }
  }
  TOK_CHECK(from != nullptr, "{}: no way to reshard",
            is_leaf ? "state" : global_.producer(v).rules->name);
  if (from->stage >= 0 && from->stage != stage && is_scattered(from->placement, want)) {
    sum_before_it_crosses(v, want, have);
    return have.front().value;
  }
  if (sums_beside_head(v, *from, want, stage)) {
    const LabelScope scope(g_, context_.label_of(global_, v.node));
    const int32_t first = g_.size();
    have.push_back(resharded(v, *from, want, stage, GroupPurpose::kCovered));
    put_communication_on(g_, first, kCoveredSumStream);
    return have.back().value;
  }
  const LocalValue now = resharded(v, *from, want, stage);
  gather_again(v, *from, want, stage);
  have.push_back(now);
  return now.value;
}

bool LocalValues::gathers_again(int stage) const {
  const DistributeOptions& o = *context_.options;
  const std::vector<int>& ranks = o.pipeline.rank_of_stage;
  const bool is_with_head = ranks.size() > 1 && ranks[stage] == ranks.back();
  return o.gather_again && (o.gather_again_with_head || !is_with_head);
}

void LocalValues::gather_again(Value v, const LocalValue& from, const Placement& want, int stage) {
  constexpr auto kTp = static_cast<size_t>(PlacementAxis::kTp);
  if (!gathers_again(stage) || g_.label.phase != Phase::kForward || g_.label.block < 0 ||
      !from.placement[kTp].shard.is_cut() || want[kTp].shard != kReplicated)
    return;
  const int32_t first = g_.size();
  LocalValue again = resharded(v, from, want, stage, GroupPurpose::kAgain);
  again.is_for_backward = true;
  for (int32_t i = first; i < g_.size(); ++i) g_.mutable_node(i).is_dropped = true;
  put_communication_on(g_, first, kCoveredGatherStream);
  values_[v].push_back(again);
}

Range LocalValues::range_of(const AxisPlacement& p, PlacementAxis axis) const {
  if (!p.shard.is_cut()) return {};
  return (*p.ranges)[context_.index_in(traits_of(axis).mesh)];
}

TensorType LocalValues::local_type(const TensorType& whole, const Placement& p) const {
  TensorType type = whole;
  for (size_t a = 0; a < kNumPlacementAxes; ++a) {
    if (!p[a].shard.is_cut()) continue;
    const auto d = static_cast<size_t>(p[a].shard.dim);
    const int64_t extent = whole.dims[d];
    if (type.dims[d] == extent) {
      type.dims[d] = range_of(p[a], static_cast<PlacementAxis>(a)).size();
    } else {
      type.dims[d] /= static_cast<int64_t>(p[a].ranges->size());
    }
  }
  return type;
}

Value LocalValues::leaf(Value v) {
  StateDecl mine = global_.states()[global_.producer(v).state];
  mine.type = local_type(mine.type, placements_[v.node].out[0]);
  return g_.read(g_.states().declare_once(mine));
}

// `purpose` is that of the groups that communicate.
LocalValue LocalValues::resharded(Value v, LocalValue from, const Placement& want, int stage,
                                  GroupPurpose purpose) {
  from.stage = stage;
  Label label = g_.label;  // of the first node that wants it so
  label.origin = {.value = v.node, .part = v.out};
  const LabelScope scope(g_, label);
  for (size_t a = 0; a < kNumPlacementAxes; ++a) {
    if (from.placement[a] == want[a]) continue;
    const auto axis = static_cast<PlacementAxis>(a);
    TOK_CHECK(traits_of(axis).localizes, "activations move over {}", traits_of(axis).name);
    const bool is_covered = axis == PlacementAxis::kTp && purpose == GroupPurpose::kGeneral &&
                            covers_collective(from.placement[a].shard, want[a].shard);
    const bool is_sum = from.placement[a].shard == kPartialSum;
    GroupPurpose traffic = purpose;
    if (is_covered) traffic = is_sum ? GroupPurpose::kCovered : GroupPurpose::kAgain;
    const int32_t first = g_.size();
    from.value = reshard(g_, from.value, context_.group(traits_of(axis).mesh, traffic),
                         from.placement[a], want[a], global_.type(v));
    if (is_covered)
      put_communication_on(g_, first, is_sum ? kCoveredSumStream : kCoveredGatherStream);
    from.placement[a] = want[a];
  }
  return from;
}

// Whether the sum of the head's input gradient can overlap the head's weight gradient, which is
// computed in the forward.
bool LocalValues::sums_beside_head(Value v, const LocalValue& from, const Placement& want,
                                   int stage) const {
  const DistributeOptions& o = *context_.options;
  const Label of_head = context_.label_of(global_, v.node);
  return o.covers_collectives && !splits_backward_ && from.stage == stage &&
         of_head.phase == Phase::kForward && of_head.block < 0 &&
         g_.label.phase == Phase::kBackward && is_scattered(from.placement, want);
}

// Whether weight gradients of a block can overlap the collective between these placements.
bool LocalValues::covers_collective(Shard from, Shard to) const {
  const DistributeOptions& o = *context_.options;
  const bool is_covered_phase =
      g_.label.phase == Phase::kBackward ||
      (g_.label.phase == Phase::kForward && o.covers_forwards && o.mesh.degree(MeshAxis::kPp) > 1);
  if (!o.covers_collectives || !is_covered_phase || g_.label.block < 0 || splits_backward_)
    return false;
  return (from == kPartialSum && to.is_cut()) || (from.is_cut() && to == kReplicated);
}

// A pending sum would be a message as large as the whole value, so its cut sum is sent instead.
void LocalValues::sum_before_it_crosses(Value v, const Placement& want,
                                        std::vector<LocalValue>& have) {
  LocalValue& itself = have.front();
  for (LocalValue& l : have) {
    if (l.stage != itself.stage || !(l.placement == want)) continue;
    std::swap(itself, l);
    return;
  }
  const LabelScope scope(g_, context_.label_of(global_, v.node));
  itself = resharded(v, itself, want, itself.stage);
}

}  // namespace tokamak
