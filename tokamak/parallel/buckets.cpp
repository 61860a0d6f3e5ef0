#include "tokamak/parallel/buckets.h"

#include <algorithm>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "tokamak/core/error.h"
#include "tokamak/ops/accumulate.h"
#include "tokamak/ops/cast.h"
#include "tokamak/ops/collective.h"
#include "tokamak/ops/reshape.h"
#include "tokamak/ops/slice_rows.h"

namespace tokamak {
namespace {

// Tensors and slices begin at multiples of this many elements.
constexpr int64_t kBucketAlignment = 128;

constexpr int kGatherStream = 1;
constexpr int kReduceStream = 2;

constexpr auto kTpIndex = static_cast<size_t>(PlacementAxis::kTp);

int64_t align(int64_t n, int64_t unit) {
  return (n + unit - 1) / unit * unit;
}

bool accumulates_into_gradient(const Graph& g, const Accumulation& a, Value* leaf) {
  Value into = a.into;
  while (!g.producer(into).is_leaf()) {
    const auto before = g.producer(into).accumulation(into.out);
    if (!before) return false;
    into = before->into;
  }
  *leaf = into;
  return g.states()[g.producer(into).state].kind == StateKind::kGradient;
}

bool has_replicas(const Ranges& ranges) {
  for (size_t r = 1; r < ranges.size(); ++r) {
    if (ranges[r] == ranges[r - 1]) return true;
  }
  return false;
}

TensorType local_type(const TensorType& whole, const AxisPlacement& tp, int at) {
  TensorType type = whole;
  if (tp.shard.is_cut())
    type.dims[static_cast<size_t>(tp.shard.dim)] = (*tp.ranges)[static_cast<size_t>(at)].size();
  return type;
}

// Emits on a stream and in certain microbatches.
Value emitted(Graph& g, Value v, int stream, When when = When::kEvery) {
  Node& node = g.mutable_node(v.node);
  node.stream = stream;
  node.when = when;
  return v;
}

}  // namespace

CommGroup RankContext::group(AxisSet axes, const std::string& purpose) const {
  const int rank = options->mesh.rank_of(at);
  const std::string name = to_string(axes) + (purpose.empty() ? "" : " " + purpose);
  return groups->add(name, options->mesh.group_of(rank, axes), rank);
}

bool RankContext::runs_stage(int stage) const {
  const auto& ranks = options->pipeline.rank_of_stage;
  const int at_pp = at[static_cast<size_t>(MeshAxis::kPp)];
  return ranks.empty() || ranks[static_cast<size_t>(stage)] == at_pp;
}

Buckets::Buckets(const Graph& global, const std::vector<NodePlacement>& placements,
                 StateTable& local, const RankContext& context)
    : global_(global), placements_(placements), local_(local), context_(context) {
  find_tensors();
  index_tensors();
  find_contributions();
  for (Bucket& bucket : buckets_) {
    lay_out(bucket);
    declare(bucket);
  }
  index_tensors();
  declare_rings();
}

int Buckets::stage_of(int32_t module) const {
  const auto& stages = context_.options->stage_of_module;
  return stages.empty() ? 0 : stages[static_cast<size_t>(module)];
}

int Buckets::pp_of(int stage) const {
  const auto& ranks = context_.options->pipeline.rank_of_stage;
  return ranks.empty() ? 0 : ranks[static_cast<size_t>(stage)];
}

// A bucket for each (stage, module); norm and head of one stage share one, and a weight that stages
// share has one of its own on each of their ranks.
void Buckets::find_tensors() {
  int32_t last_module = 0;
  std::map<int32_t, int32_t> leaf_of;  // state -> node
  std::map<int32_t, std::set<int>> uses;
  std::map<int32_t, int32_t> copy_of;  // cast node -> state
  for (int32_t i = 0; i < global_.size(); ++i) {
    const Node& n = global_.node(i);
    last_module = std::max(last_module, n.label.module);
    if (n.is_leaf()) leaf_of[n.state.index] = i;
    for (const Value v : n.in) {
      const Node& from = global_.producer(v);
      int32_t state = -1;
      if (from.is_leaf() && global_.states()[from.state].kind == StateKind::kParameter)
        state = from.state.index;
      if (const auto it = copy_of.find(v.node); it != copy_of.end()) state = it->second;
      if (state < 0) continue;
      if (n.label.phase == Phase::kUnshard) {
        copy_of[i] = state;
        compute_ = n.out[0].dtype;
      } else {
        uses[state].insert(stage_of(n.label.module));
        if (copy_of.empty()) compute_ = from.out[0].dtype;
      }
    }
  }

  using Key = std::tuple<int, int32_t, int32_t>;  // stage, module, tied state
  std::map<Key, Bucket> made;
  for (const auto& [state, stages] : uses) {
    const StateDecl& decl = global_.states()[{state}];
    const AxisPlacement& tp = placements_[static_cast<size_t>(leaf_of.at(state))].out[0][kTpIndex];
    std::map<int, int> first_stage_on;  // pp -> stage
    for (const int stage : stages) first_stage_on.emplace(pp_of(stage), stage);
    const bool is_tied = stages.size() > 1;
    for (const auto& [pp, stage] : first_stage_on) {
      // Norm and head need their weights at the same time.
      const int32_t module = std::min(decl.module, last_module - 1);
      Bucket& bucket = made[{stage, module, is_tied ? state : -1}];
      bucket.block = decl.block;
      bucket.module = module;
      bucket.stage = stage;
      bucket.is_here = context_.runs_stage(stage);
      if (is_tied) {
        for (const auto& [other, unused] : first_stage_on) bucket.tie_ranks.push_back(other);
      }
      bucket.tensors.push_back(
          {.name = decl.name,
           .global = {state},
           .whole = decl.type,
           .local = local_type(decl.type, tp, context_.at[static_cast<size_t>(MeshAxis::kTp)]),
           .tp = tp,
           .gradient = !tp.shard.is_cut()         ? TpGradient::kWhole
                       : has_replicas(*tp.ranges) ? TpGradient::kReplicas
                                                  : TpGradient::kAlone,
           .init = decl.init,
           .is_tied_copy = pp_of(*stages.begin()) != pp,
           .stages = stages_on(stages, pp)});
    }
  }
  for (auto& [key, bucket] : made) {
    bucket.name =
        fmt::format("s{}.m{}{}", bucket.stage, bucket.module, std::get<2>(key) >= 0 ? ".tied" : "");
    buckets_.push_back(std::move(bucket));
  }
}

std::vector<int> Buckets::stages_on(const std::set<int>& stages, int pp) const {
  std::vector<int> here;
  for (const int s : stages) {
    if (pp_of(s) == pp) here.push_back(s);
  }
  return here;
}

// How many contributions each bucket's gradients get, and which are sums pending over tp.
void Buckets::find_contributions() {
  for (int32_t i = 0; i < global_.states().size(); ++i) {
    const StateDecl& decl = global_.states()[{i}];
    if (decl.kind == StateKind::kGradient)
      parameter_of_gradient_[i] = global_.states().find(decl.name.substr(5));
  }
  for (int32_t i = 0; i < global_.size(); ++i) {
    const Node& n = global_.node(i);
    for (const Accumulation& a : n.accumulations) {
      Value leaf;
      if (!accumulates_into_gradient(global_, a, &leaf)) continue;
      gradient_dtype_ = global_.type(leaf).dtype;
      const StateId parameter = parameter_of_gradient_.at(global_.producer(leaf).state.index);
      const auto [b, t] = where_.at({parameter.index, stage_of(n.label.module)});
      if (buckets_[b].contributions_left++ == 0) buckets_[b].first_contribution = i;
      buckets_[b].last_contribution = i;
      BucketTensor& tensor = buckets_[b].tensors[t];
      const Placement& p = placements_[static_cast<size_t>(i)].out[static_cast<size_t>(a.out)];
      for (const PlacementAxis axis : {PlacementAxis::kDp, PlacementAxis::kCp}) {
        TOK_CHECK(context_.degree(mesh_axes(axis)) == 1 ||
                      p[static_cast<size_t>(axis)].shard == kPartialSum,
                  "the gradient of {} is no partial sum", tensor.name);
      }
      if (p[kTpIndex].shard == kPartialSum) tensor.gradient = TpGradient::kPartial;
    }
  }
}

void Buckets::index_tensors() {
  for (size_t b = 0; b < buckets_.size(); ++b) {
    for (size_t t = 0; t < buckets_[b].tensors.size(); ++t) {
      const BucketTensor& tensor = buckets_[b].tensors[t];
      for (const int stage : tensor.stages) where_[{tensor.global.index, stage}] = {b, t};
    }
  }
}

void Buckets::lay_out(Bucket& bucket) {
  std::stable_sort(
      bucket.tensors.begin(), bucket.tensors.end(),
      [](const BucketTensor& a, const BucketTensor& b) { return a.gradient < b.gradient; });
  for (BucketTensor& tensor : bucket.tensors) {
    tensor.begin = bucket.numel;
    bucket.numel = align(bucket.numel + tensor.local.numel(), kBucketAlignment);
  }
  const int owners = context_.degree(kShardAxes);
  bucket.numel = align(bucket.numel, kBucketAlignment * owners);
  bucket.slice = bucket.numel / owners;
}

StateId Buckets::declare_state(const std::string& name, DType dtype, int64_t numel, StateKind kind,
                               const Bucket& bucket) {
  return local_.declare_once({.name = fmt::format("{}.{}", name, bucket.name),
                              .type = {.dtype = dtype, .dims = {numel}},
                              .kind = kind,
                              .block = bucket.block,
                              .is_absent = !bucket.is_here});
}

StateId Buckets::declare_window(const std::string& name, TensorType type, StateId parent,
                                int64_t begin, const Bucket& bucket) {
  return local_.declare_once({.name = name,
                              .type = std::move(type),
                              .kind = local_[parent].kind,
                              .block = bucket.block,
                              .window_of = parent,
                              .window_begin = begin,
                              .is_absent = !bucket.is_here});
}

bool Buckets::stores_full() const {
  // Stages interleave microbatches, whose gradients would meet in one ring.
  if (context_.options->mesh.degree(MeshAxis::kPp) > 1) return true;
  if (context_.degree(kShardAxes) == 1) return true;
  const DistributeOptions& o = *context_.options;
  if (o.grad_store != GradStore::kAuto) return o.grad_store == GradStore::kFull;
  if (o.sharding == Sharding::kZero2) return false;
  return o.sharding != Sharding::kFsdp || o.num_microbatches > 1;
}

void Buckets::declare(Bucket& bucket) {
  const DType master = bucket.tensors[0].local.dtype;
  bucket.master = declare_state("weights", master, bucket.slice, StateKind::kParameter, bucket);
  bucket.first_moment = declare_state("moment_m", master, bucket.slice, StateKind::kMoment, bucket);
  bucket.second_moment =
      declare_state("moment_v", master, bucket.slice, StateKind::kMoment, bucket);
  if (!stores_full()) {
    bucket.gradient =
        declare_state("gradient", gradient_dtype_, bucket.slice, StateKind::kGradient, bucket);
    return;
  }
  bucket.full_gradient =
      declare_state("gradient", gradient_dtype_, bucket.numel, StateKind::kGradient, bucket);
  const int at = context_.group(kShardAxes).rank;
  bucket.gradient = declare_window("gradient_slice." + bucket.name,
                                   {.dtype = gradient_dtype_, .dims = {bucket.slice}},
                                   bucket.full_gradient, at * bucket.slice, bucket);
}

// Buffers that buckets take turns in, and windows for each tensor's gradient.
void Buckets::declare_rings() {
  if (!stores_full()) {
    struct Ring {
      int32_t busy_until = -1;
      std::vector<Bucket*> users;
    };

    std::vector<Ring> rings(2);
    std::vector<Bucket*> order;
    for (Bucket& b : buckets_) {
      if (b.is_here) order.push_back(&b);
    }
    std::sort(order.begin(), order.end(), [](const Bucket* a, const Bucket* b) {
      return a->first_contribution < b->first_contribution;
    });
    for (Bucket* b : order) {
      // The one that is free for longest: its reduction has had time.
      auto ring = std::min_element(rings.begin(), rings.end(), [](const Ring& x, const Ring& y) {
        return x.busy_until < y.busy_until;
      });
      if (ring->busy_until >= b->first_contribution) ring = rings.insert(rings.end(), Ring{});
      ring->busy_until = b->last_contribution;
      ring->users.push_back(b);
    }
    for (size_t k = 0; k < rings.size(); ++k) {
      int64_t most = 0;
      for (const Bucket* b : rings[k].users) most = std::max(most, b->numel);
      if (most == 0) continue;
      const StateId ring = local_.declare_once({.name = fmt::format("gradient_ring.{}", k),
                                                .type = {.dtype = gradient_dtype_, .dims = {most}},
                                                .kind = StateKind::kBuffer});
      for (Bucket* b : rings[k].users) {
        b->full_gradient =
            declare_window("gradient_full." + b->name,
                           {.dtype = gradient_dtype_, .dims = {b->numel}}, ring, 0, *b);
      }
    }
  }
  for (Bucket& b : buckets_) {
    if (!b.is_here) {
      if (!b.full_gradient.valid())
        b.full_gradient =
            declare_state("gradient_full", gradient_dtype_, b.numel, StateKind::kBuffer, b);
    }
    for (BucketTensor& t : b.tensors) {
      t.grad_window = declare_window(fmt::format("grad.{}.s{}", t.name, b.stage),
                                     {.dtype = gradient_dtype_, .dims = t.local.dims},
                                     b.full_gradient, t.begin, b);
    }
  }
}

// Once a step, once a microbatch, or for forward and backward apart.
Buckets::Gathers Buckets::gathers(const Bucket& bucket) const {
  const DistributeOptions& o = *context_.options;
  if (context_.degree(kShardAxes) == 1 || o.sharding != Sharding::kFsdp) return Gathers::kOnce;
  if (o.reshard == Reshard::kAlways) return Gathers::kTwice;
  if (o.reshard == Reshard::kNever || o.mesh.degree(MeshAxis::kPp) > 1) return Gathers::kOnce;
  return bucket.block >= 0 ? Gathers::kTwice : Gathers::kEachMicrobatch;
}

Value Buckets::weight(Graph& g, StateId global, int stage) {
  const auto [b, t] = where_.at({global.index, stage});
  if (buckets_[b].weights.empty()) gather(g, buckets_[b]);
  // One bucket ahead, so that its gather runs beside this one's blocks.
  if (b + 1 < buckets_.size() && buckets_[b + 1].stage == stage && buckets_[b + 1].weights.empty())
    gather(g, buckets_[b + 1]);
  return buckets_[b].weights[t];
}

void Buckets::gather(Graph& g, Bucket& bucket) {
  const Gathers when = gathers(bucket);
  const LabelScope scope(g, {.phase = when == Gathers::kOnce ? Phase::kUnshard : Phase::kForward,
                             .block = bucket.block,
                             .module = bucket.module,
                             .stage = bucket.stage});
  const int32_t first = g.size();
  Value flat = g.read(bucket.master);
  if (compute_ != g.type(flat).dtype) flat = g.apply(Cast{.dtype = compute_}, {flat});
  if (context_.degree(kShardAxes) > 1) {
    flat = emitted(g, g.apply(AllGather{.group = context_.group(kShardAxes, "gather")}, {flat}),
                   kGatherStream);
    flat = g.apply(Reshape{.dims = {-1}}, {flat});
  }
  for (const BucketTensor& t : bucket.tensors) {
    const Value part =
        g.apply(SliceRows{.begin = t.begin, .end = t.begin + t.local.numel()}, {flat});
    bucket.weights.push_back(g.apply(Reshape{.dims = t.local.dims}, {part}));
  }
  for (int32_t i = first; when == Gathers::kTwice && i < g.size(); ++i)
    g.mutable_node(i).is_dropped = true;
}

Buckets::Destination Buckets::destination(Graph& g, StateId global_gradient, int stage) {
  const StateId parameter = parameter_of_gradient_.at(global_gradient.index);
  const auto [b, t] = where_.at({parameter.index, stage});
  const BucketTensor& tensor = buckets_[b].tensors[t];
  const bool is_first = !tensor.grad_sum.valid();
  const auto first_mode = stores_full() ? AccumulateMode::kFirstMicrobatch : AccumulateMode::kNever;
  return {.bucket = &buckets_[b],
          .tensor = t,
          .into = is_first ? g.read(tensor.grad_window) : tensor.grad_sum,
          .mode = is_first ? first_mode : AccumulateMode::kAlways};
}

void Buckets::contributed(Graph& g, const Destination& to, Value sum) {
  to.bucket->tensors[to.tensor].grad_sum = sum;
  if (--to.bucket->contributions_left == 0) reduce(g, *to.bucket);
}

// Tensors of one kind lie together: one all-reduce sums them.
void Buckets::sum_section(Graph& g, Bucket& bucket, TpGradient which, const CommGroup& group,
                          When when) {
  if (group.size == 1) return;
  int64_t begin = -1;
  int64_t end = 0;
  for (const BucketTensor& t : bucket.tensors) {
    if (t.gradient != which) continue;
    if (begin < 0) begin = t.begin;
    end = t.begin + t.local.numel();
  }
  if (begin < 0) return;
  const StateId section = declare_window(
      fmt::format("gradient_section.{}.{}", static_cast<int>(which), bucket.name),
      {.dtype = gradient_dtype_, .dims = {end - begin}}, bucket.full_gradient, begin, bucket);
  emitted(g, g.apply(AllReduce{.group = group, .in_place = true}, {g.read(section)}), kReduceStream,
          when);
}

void Buckets::reduce(Graph& g, Bucket& bucket) {
  if (!bucket.is_here) return;
  const LabelScope scope(g, {.phase = Phase::kBackward,
                             .block = bucket.block,
                             .module = bucket.module,
                             .stage = bucket.stage});
  const When when = stores_full() ? When::kLastMicrobatch : When::kEvery;
  sum_section(g, bucket, TpGradient::kPartial, context_.group({MeshAxis::kTp}, "reduce"), when);
  for (const BucketTensor& t : bucket.tensors) {
    if (t.gradient != TpGradient::kReplicas) continue;
    const int at_tp = context_.at[static_cast<size_t>(MeshAxis::kTp)];
    std::vector<int> ranks;
    for (const int r : replicas_of(*t.tp.ranges, at_tp)) {
      MeshCoordinates at = context_.at;
      at[static_cast<size_t>(MeshAxis::kTp)] = r;
      ranks.push_back(context_.options->mesh.rank_of(at));
    }
    const int rank = context_.options->mesh.rank_of(context_.at);
    sum_section(g, bucket, TpGradient::kReplicas,
                context_.groups->add("tp replicas reduce", ranks, rank), when);
    break;
  }
  const int owners = context_.degree(kShardAxes);
  if (owners > 1) {
    const StateId rows = declare_window("gradient_rows." + bucket.name,
                                        {.dtype = gradient_dtype_, .dims = {owners, bucket.slice}},
                                        bucket.full_gradient, 0, bucket);
    const Value sum = emitted(
        g, g.apply(ReduceScatter{.group = context_.group(kShardAxes, "reduce")}, {g.read(rows)}),
        kReduceStream, when);
    const Value stored =
        emitted(g, g.apply(Accumulate{.dtype = gradient_dtype_}, {sum}), kReduceStream, when);
    g.accumulate(stored, g.read(bucket.gradient),
                 stores_full() ? AccumulateMode::kNever : AccumulateMode::kFirstMicrobatch);
  }
  if (context_.degree({MeshAxis::kDpReplicate}) == 1) return;
  const StateId total = declare_window("gradient_total." + bucket.name,
                                       {.dtype = gradient_dtype_, .dims = {bucket.slice}},
                                       bucket.gradient, 0, bucket);
  emitted(g,
          g.apply(AllReduce{.group = context_.group({MeshAxis::kDpReplicate}, "reduce"),
                            .in_place = true},
                  {g.read(total)}),
          kReduceStream, When::kLastMicrobatch);
}

void Buckets::finish(Graph& g) {
  const LabelScope scope(g, {.phase = Phase::kUpdate});
  for (Bucket& bucket : buckets_) {
    if (!bucket.is_here || bucket.tie_ranks.size() < 2) continue;
    std::vector<int> members;
    for (const int pp : bucket.tie_ranks) {
      MeshCoordinates at = context_.at;
      at[static_cast<size_t>(MeshAxis::kPp)] = pp;
      members.push_back(context_.options->mesh.rank_of(at));
    }
    const CommGroup group = context_.groups->add("pp tied weights", members,
                                                 context_.options->mesh.rank_of(context_.at));
    const StateId tied = declare_window("gradient_tied." + bucket.name,
                                        {.dtype = gradient_dtype_, .dims = {bucket.slice}},
                                        bucket.gradient, 0, bucket);
    g.apply(AllReduce{.group = group, .in_place = true}, {g.read(tied)});
  }
}

double Buckets::norm_weight(const Bucket&, const BucketTensor& t) const {
  if (t.is_tied_copy) return 0.0;
  const int tp = context_.degree({MeshAxis::kTp});
  if (!t.tp.shard.is_cut()) return 1.0 / tp;
  const int at = context_.at[static_cast<size_t>(MeshAxis::kTp)];
  return 1.0 / static_cast<double>(replicas_of(*t.tp.ranges, at).size());
}

bool Buckets::owns(const Bucket&, const BucketTensor& t) const {
  if (t.is_tied_copy || context_.at[static_cast<size_t>(MeshAxis::kDpReplicate)] != 0) return false;
  const int at = context_.at[static_cast<size_t>(MeshAxis::kTp)];
  return t.tp.shard.is_cut() ? replicas_of(*t.tp.ranges, at).front() == at : at == 0;
}

std::vector<TensorPiece> Buckets::pieces() const {
  std::vector<TensorPiece> all;
  const int at_tp = context_.at[static_cast<size_t>(MeshAxis::kTp)];
  const int at_slice = context_.group(kShardAxes).rank;
  for (const Bucket& bucket : buckets_) {
    if (!bucket.is_here) continue;
    const int64_t slice_begin = at_slice * bucket.slice;
    const int64_t slice_end = slice_begin + bucket.slice;
    for (const BucketTensor& t : bucket.tensors) {
      const int64_t begin = std::max(t.begin, slice_begin);
      const int64_t end = std::min(t.begin + t.local.numel(), slice_end);
      if (begin >= end) continue;
      TensorPiece piece{.tensor = t.name,
                        .type = t.whole,
                        .kind = StateKind::kParameter,
                        .init = t.init,
                        .box_begin = Dims(t.whole.dims.size(), 0),
                        .box_end = t.whole.dims,
                        .begin = begin - t.begin,
                        .end = end - t.begin,
                        .state = bucket.master,
                        .offset = begin - slice_begin,
                        .is_owner = owns(bucket, t)};
      if (t.tp.shard.is_cut()) {
        const Range& r = (*t.tp.ranges)[static_cast<size_t>(at_tp)];
        piece.box_begin[static_cast<size_t>(t.tp.shard.dim)] = r.begin;
        piece.box_end[static_cast<size_t>(t.tp.shard.dim)] = r.end;
      }
      all.push_back(piece);
      for (const char which : {'m', 'v'}) {
        TensorPiece moment = piece;
        moment.tensor = moment_name(which, t.name);
        moment.kind = StateKind::kMoment;
        moment.init = {};
        moment.state = which == 'm' ? bucket.first_moment : bucket.second_moment;
        all.push_back(std::move(moment));
      }
    }
  }
  return all;
}

std::vector<UpdateUnit> Buckets::units(Graph& g) const {
  std::vector<UpdateUnit> all;
  const int at_slice = context_.group(kShardAxes).rank;
  for (const Bucket& bucket : buckets_) {
    if (!bucket.is_here) continue;
    UpdateUnit unit{.name = bucket.name,
                    .block = bucket.block,
                    .master = bucket.master,
                    .first_moment = bucket.first_moment,
                    .second_moment = bucket.second_moment,
                    .gradient = read_final(g, bucket.gradient)};
    const int64_t slice_begin = at_slice * bucket.slice;
    for (const BucketTensor& t : bucket.tensors) {
      const int64_t begin = std::max(t.begin - slice_begin, int64_t{0});
      const int64_t end = std::min(t.begin + t.local.numel() - slice_begin, bucket.slice);
      if (begin >= end) continue;
      unit.tensors.push_back(
          {.tensor = t.name, .begin = begin, .end = end, .norm_weight = norm_weight(bucket, t)});
    }
    if (!unit.tensors.empty()) all.push_back(std::move(unit));
  }
  return all;
}

std::string moment_name(char which, std::string_view parameter) {
  return fmt::format("optimizer.{}.{}", which, parameter);
}

}  // namespace tokamak
