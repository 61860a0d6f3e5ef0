#include "tokamak/parallel/buckets/buckets.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "tokamak/core/error.h"
#include "tokamak/graph/streams.h"
#include "tokamak/ops/comm/collective.h"
#include "tokamak/ops/elementwise/cast.h"
#include "tokamak/ops/layout/reshape.h"
#include "tokamak/ops/layout/slice_rows.h"
#include "tokamak/ops/optimizer/accumulate.h"

namespace tokamak {
namespace {

// Makes an emitted node run on `stream`, in the microbatches that `when` says.
Value emitted(Graph& g, Value v, int stream, When when = When::kEvery) {
  Node& node = g.mutable_node(v.node);
  node.stream = stream;
  node.when = when;
  return v;
}

}  // namespace

bool keeps_full_gradients(const DistributeOptions& o) {
  // Stages interleave microbatches, whose gradients would meet in one ring.
  if (o.mesh.degree(MeshAxis::kPp) > 1) return true;
  if (o.mesh.degree(kShardAxes) == 1) return true;
  if (o.grad_store != GradStore::kAuto) return o.grad_store == GradStore::kFull;
  if (o.sharding == Sharding::kZero2) return false;
  return o.sharding != Sharding::kFsdp || o.num_microbatches > 1;
}

Buckets::Buckets(BucketLayout layout, StateTable& local, const RankContext& context)
    : local_(local), context_(context), layout_(std::move(layout)) {
  for (Bucket& bucket : layout_.buckets) declare(bucket);
  declare_rings();
}

StateId Buckets::declare_state(const std::string& name, DType dtype, int64_t numel, StateKind kind,
                               const Bucket& bucket) {
  return local_.declare_once({.name = fmt::format("{}.{}", name, bucket.name),
                              .type = {.dtype = dtype, .dims = {numel}},
                              .kind = kind,
                              .block = bucket.block,
                              .stage = bucket.stage,
                              .is_tied = !bucket.tie_ranks.empty(),
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

void Buckets::declare(Bucket& bucket) {
  const DType master = bucket.tensors[0].local.dtype;
  bucket.master = declare_state("weights", master, bucket.slice, StateKind::kParameter, bucket);
  for (const std::string_view moment : kMomentNames) {
    bucket.moments.push_back(declare_state(fmt::format("moment_{}", moment), bucket.moment_dtype,
                                           bucket.slice, StateKind::kMoment, bucket));
  }
  if (keeps_copy(bucket)) declare_copy(bucket);
  if (!keeps_full_gradients(*context_.options)) {
    bucket.gradient =
        declare_state("gradient", layout_.gradient, bucket.slice, StateKind::kGradient, bucket);
    return;
  }
  bucket.full_gradient =
      declare_state("gradient", layout_.gradient, bucket.numel, StateKind::kGradient, bucket);
  const int at = context_.index_in(bucket.traits.owners);
  bucket.gradient = declare_window("gradient_slice." + bucket.name,
                                   {.dtype = layout_.gradient, .dims = {bucket.slice}},
                                   bucket.full_gradient, at * bucket.slice, bucket);
}

// Declares a copy of the whole bucket; a gather brings the other ranks' slices once a step.
void Buckets::declare_copy(Bucket& bucket) {
  bucket.full_copy = declare_state("copy", layout_.compute, bucket.numel, StateKind::kCopy, bucket);
  bucket.copy = bucket.full_copy;
  if (bucket.slice == bucket.numel) return;
  bucket.copy = declare_window("copy_slice." + bucket.name,
                               {.dtype = layout_.compute, .dims = {bucket.slice}}, bucket.full_copy,
                               context_.index_in(bucket.traits.owners) * bucket.slice, bucket);
}

// Returns whether it gathers once per step, once per microbatch, or separately for forward and
// backward.
Buckets::Gathers Buckets::gathers(const Bucket& bucket) const {
  const DistributeOptions& o = *context_.options;
  if (context_.degree(bucket.traits.owners) == 1 || o.sharding != Sharding::kFsdp)
    return Gathers::kOnce;
  if (o.reshard == Reshard::kAlways) return Gathers::kTwice;
  if (o.reshard == Reshard::kNever || o.mesh.degree(MeshAxis::kPp) > 1) return Gathers::kOnce;
  return bucket.block >= 0 ? Gathers::kTwice : Gathers::kEachMicrobatch;
}

// A bucket keeps its copy if that lives through the whole step. For slices that are gathered more
// often a cast saves the memory of a copy.
bool Buckets::keeps_copy(const Bucket& bucket) const {
  const DistributeOptions& o = *context_.options;
  return o.keep_copies && !bucket.has_low_precision &&
         layout_.compute != bucket.tensors[0].local.dtype && gathers(bucket) == Gathers::kOnce;
}

Value Buckets::weight(Graph& g, StateId global, int stage) {
  const auto [b, t] = layout_.where.at({global.index, stage});
  const size_t next = gather_module(g, b);
  // Gather one module ahead, so that its gather overlaps this one's blocks.
  if (next < layout_.buckets.size() && layout_.buckets[next].stage == stage) gather_module(g, next);
  return layout_.buckets[b].weights[t];
}

// Gathers what is not gathered yet of the module of bucket `b`; returns the bucket after it.
size_t Buckets::gather_module(Graph& g, size_t b) {
  const auto is_beside = [&](size_t other) {
    const Bucket& bucket = layout_.buckets[other];
    return bucket.stage == layout_.buckets[b].stage && bucket.module == layout_.buckets[b].module;
  };
  size_t k = b;
  while (k > 0 && is_beside(k - 1)) --k;
  for (; k < layout_.buckets.size() && is_beside(k); ++k) {
    if (layout_.buckets[k].weights.empty()) gather(g, layout_.buckets[k]);
  }
  return k;
}

Value Buckets::weight_for_low_precision(Graph& g, StateId global, int stage) {
  const auto [b, t] = layout_.where.at({global.index, stage});
  const Bucket& bucket = layout_.buckets[b];
  if (!bucket.copy.valid() || bucket.slice != bucket.numel) return weight(g, global, stage);
  const LabelScope scope(g, label_of(bucket, Phase::kUnshard));
  return g.apply(Cast{.dtype = layout_.compute},
                 {part_of(g, bucket.tensors[t], g.read(bucket.master))});
}

Label Buckets::label_of(const Bucket& bucket, Phase phase) {
  return {.phase = phase,
          .block = bucket.block,
          .module = bucket.module,
          .stage = bucket.stage,
          .origin = {.state = bucket.first_state}};
}

Value Buckets::part_of(Graph& g, const BucketTensor& t, Value flat) const {
  const SliceRows slice{.begin = t.begin, .end = t.begin + t.local.numel()};
  return g.apply(Reshape{.dims = t.local.dims}, {g.apply(slice, {flat})});
}

void Buckets::gather(Graph& g, Bucket& bucket) {
  const Gathers when = gathers(bucket);
  const LabelScope scope(
      g, label_of(bucket, when == Gathers::kOnce ? Phase::kUnshard : Phase::kForward));
  const int32_t first = g.size();
  Value flat = g.read(bucket.copy.valid() ? bucket.copy : bucket.master);
  const bool has_low_precision = bucket.has_low_precision && when != Gathers::kTwice;
  if (has_low_precision && context_.degree(bucket.traits.owners) == 1)
    return cast_parts(g, bucket, flat);
  if (layout_.compute != g.type(flat).dtype) flat = g.apply(Cast{.dtype = layout_.compute}, {flat});
  if (const int owners = context_.degree(bucket.traits.owners); owners > 1) {
    const AllGather all{.group = context_.group(bucket.traits.owners, GroupPurpose::kGather),
                        .overwrites = bucket.copy.valid()};
    flat = emitted(g, g.apply(all, {flat}), kGatherStream);
    if (all.overwrites) {
      const StateId rows = declare_window(
          "copy_rows." + bucket.name, {.dtype = layout_.compute, .dims = {owners, bucket.slice}},
          bucket.full_copy, 0, bucket);
      g.accumulate(flat, g.read(rows), AccumulateMode::kNever);
    }
    flat = g.apply(Reshape{.dims = {-1}}, {flat});
  }
  for (const BucketTensor& t : bucket.tensors) {
    Value weight = part_of(g, t, flat);
    // Copied, so that the gathered bucket may be freed once the others are quantized.
    if (has_low_precision && !t.is_low_precision)
      weight = g.apply(Cast{.dtype = layout_.compute}, {weight});
    bucket.weights.push_back(weight);
  }
  for (int32_t i = first; when == Gathers::kTwice && i < g.size(); ++i)
    g.mutable_node(i).is_dropped = true;
}

// Casts each tensor's part; no op reads the casts of matrices in low precision.
void Buckets::cast_parts(Graph& g, Bucket& bucket, Value flat) {
  for (const BucketTensor& t : bucket.tensors) {
    Value weight = part_of(g, t, flat);
    if (layout_.compute != g.type(weight).dtype)
      weight = g.apply(Cast{.dtype = layout_.compute}, {weight});
    bucket.weights.push_back(weight);
  }
}

Buckets::Destination Buckets::destination(Graph& g, StateId global_gradient, int stage) {
  const StateId parameter = layout_.parameter_of_gradient.at(global_gradient.index);
  const auto [b, t] = layout_.where.at({parameter.index, stage});
  const BucketTensor& tensor = layout_.buckets[b].tensors[t];
  const bool is_first = !tensor.grad_sum.valid();
  const auto first_mode = keeps_full_gradients(*context_.options) ? AccumulateMode::kFirstMicrobatch
                                                                  : AccumulateMode::kNever;
  return {.bucket = &layout_.buckets[b],
          .tensor = t,
          .into = is_first ? g.read(tensor.grad_window) : tensor.grad_sum,
          .mode = is_first ? first_mode : AccumulateMode::kAlways};
}

void Buckets::contributed(Graph& g, const Destination& to, Value sum) {
  to.bucket->tensors[to.tensor].grad_sum = sum;
  if (--to.bucket->contributions_left > 0) return;
  // All are reduced after the last gradient of any, which may be a norm's that weight gradients
  // wait for.
  const std::span<Bucket> module = module_buckets(layout_.buckets, *to.bucket);
  for (const Bucket& bucket : module) {
    if (bucket.contributions_left > 0) return;
  }
  for (Bucket& bucket : module) reduce(g, bucket);
}

// Tensors of one kind lie together, so one all-reduce sums them.
void Buckets::sum_over_tp(Graph& g, const Bucket& bucket, When when) {
  for (const TpGradient which : {TpGradient::kPartial, TpGradient::kReplicas}) {
    const auto is_such = [&](const BucketTensor& t) { return t.gradient == which; };
    const auto first = std::find_if(bucket.tensors.begin(), bucket.tensors.end(), is_such);
    if (first == bucket.tensors.end()) continue;
    const auto last = std::find_if(bucket.tensors.rbegin(), bucket.tensors.rend(), is_such);
    std::vector<int> sharers(context_.degree({MeshAxis::kTp}));
    std::iota(sharers.begin(), sharers.end(), 0);
    if (which == TpGradient::kReplicas)
      sharers = replicas_of(*first->tp.ranges, context_.coordinate(MeshAxis::kTp));
    if (sharers.size() == 1) continue;
    const bool is_partial = which == TpGradient::kPartial;
    const CommGroup group = context_.group_along(
        MeshAxis::kTp, sharers, is_partial ? GroupPurpose::kReduce : GroupPurpose::kReplicas);
    const int64_t numel = last->begin + last->local.numel() - first->begin;
    const StateId section = declare_window(
        fmt::format("gradient_section.{}.{}", is_partial ? "partial" : "replicas", bucket.name),
        {.dtype = layout_.gradient, .dims = {numel}}, bucket.full_gradient, first->begin, bucket);
    emitted(g, g.apply(AllReduce{.group = group, .in_place = true}, {g.read(section)}),
            kReduceStream, when);
  }
}

void Buckets::reduce(Graph& g, Bucket& bucket) {
  if (!bucket.is_here) return;
  const LabelScope scope(g, label_of(bucket, Phase::kBackward));
  const When when = keeps_full_gradients(*context_.options) ? When::kLastMicrobatch : When::kEvery;
  if (context_.degree({MeshAxis::kTp}) > 1) sum_over_tp(g, bucket, when);
  const int owners = context_.degree(bucket.traits.owners);
  if (owners > 1) {
    const StateId rows = declare_window("gradient_rows." + bucket.name,
                                        {.dtype = layout_.gradient, .dims = {owners, bucket.slice}},
                                        bucket.full_gradient, 0, bucket);
    const bool is_once =
        keeps_full_gradients(*context_.options) || context_.options->num_microbatches == 1;
    const ReduceScatter scatter{
        .group = context_.group(bucket.traits.owners, GroupPurpose::kReduce),
        .overwrites = is_once};
    Value sum = emitted(g, g.apply(scatter, {g.read(rows)}), kReduceStream, when);
    if (!is_once)
      sum = emitted(g, g.apply(Accumulate{.dtype = layout_.gradient}, {sum}), kReduceStream, when);
    g.accumulate(sum, g.read(bucket.gradient),
                 is_once ? AccumulateMode::kNever : AccumulateMode::kFirstMicrobatch);
  }
  if (context_.degree({MeshAxis::kDpReplicate}) == 1) return;
  const StateId total = declare_window("gradient_total." + bucket.name,
                                       {.dtype = layout_.gradient, .dims = {bucket.slice}},
                                       bucket.gradient, 0, bucket);
  emitted(
      g,
      g.apply(AllReduce{.group = context_.group({MeshAxis::kDpReplicate}, GroupPurpose::kReduce),
                        .in_place = true},
              {g.read(total)}),
      kReduceStream, When::kLastMicrobatch);
}

void Buckets::finish(Graph& g) {
  for (Bucket& bucket : layout_.buckets) {
    if (!bucket.is_here || bucket.tie_ranks.size() < 2) continue;
    const LabelScope scope(g, {.phase = Phase::kUpdate, .origin = {.state = bucket.first_state}});
    const CommGroup group =
        context_.group_along(MeshAxis::kPp, bucket.tie_ranks, GroupPurpose::kTied);
    const StateId tied = declare_window("gradient_tied." + bucket.name,
                                        {.dtype = layout_.gradient, .dims = {bucket.slice}},
                                        bucket.gradient, 0, bucket);
    g.apply(AllReduce{.group = group, .in_place = true}, {g.read(tied)});
  }
}

double Buckets::norm_weight(const BucketTensor& t) const {
  if (t.is_tied_copy) return 0.0;
  const int tp = context_.degree({MeshAxis::kTp});
  if (!t.tp.shard.is_cut()) return 1.0 / tp;
  const int at = context_.coordinate(MeshAxis::kTp);
  return 1.0 / static_cast<double>(replicas_of(*t.tp.ranges, at).size());
}

// Returns where the elements of this rank's part of the tensor lie in it, from `at` on.
ElementPlaces Buckets::places_of(const BucketTensor& t, int64_t at) const {
  ElementPlaces places{.at = at};
  if (!t.tp.shard.is_cut()) return places;
  int64_t inner = 1;
  for (size_t d = static_cast<size_t>(t.tp.shard.dim) + 1; d < t.whole.dims.size(); ++d)
    inner *= t.whole.dims[d];
  const Range& r = (*t.tp.ranges)[context_.coordinate(MeshAxis::kTp)];
  places.first = r.begin * inner;
  places.width = r.size() * inner;
  places.pitch = t.whole.dims[t.tp.shard.dim] * inner;
  return places;
}

bool Buckets::owns(const BucketTensor& t) const {
  if (t.is_tied_copy || context_.coordinate(MeshAxis::kDpReplicate) != 0) return false;
  const int at = context_.coordinate(MeshAxis::kTp);
  return t.tp.shard.is_cut() ? replicas_of(*t.tp.ranges, at).front() == at : at == 0;
}

std::vector<TensorPiece> Buckets::pieces() const {
  std::vector<TensorPiece> all;
  const int at_tp = context_.coordinate(MeshAxis::kTp);
  for (const Bucket& bucket : layout_.buckets) {
    if (!bucket.is_here) continue;
    const int64_t slice_begin = context_.index_in(bucket.traits.owners) * bucket.slice;
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
                        .is_owner = owns(t)};
      if (t.tp.shard.is_cut()) {
        const Range& r = (*t.tp.ranges)[at_tp];
        piece.box_begin[t.tp.shard.dim] = r.begin;
        piece.box_end[t.tp.shard.dim] = r.end;
      }
      all.push_back(piece);
      for (size_t m = 0; m < bucket.moments.size(); ++m) {
        TensorPiece moment = piece;
        moment.tensor = moment_name(kMomentNames[m], t.name);
        moment.kind = StateKind::kMoment;
        moment.type.dtype = bucket.moment_dtype;
        moment.init = {};
        moment.state = bucket.moments[m];
        all.push_back(std::move(moment));
      }
    }
  }
  return all;
}

std::vector<UpdateUnit> Buckets::units(Graph& g) const {
  std::vector<UpdateUnit> all;
  for (const Bucket& bucket : layout_.buckets) {
    if (!bucket.is_here) continue;
    UpdateUnit unit{.block = bucket.block,
                    .master = bucket.master,
                    .moments = bucket.moments,
                    .copy = bucket.copy,
                    .gradient = read_final(g, bucket.gradient)};
    const int64_t slice_begin = context_.index_in(bucket.traits.owners) * bucket.slice;
    for (const BucketTensor& t : bucket.tensors) {
      const int64_t begin = std::max(t.begin - slice_begin, int64_t{0});
      const int64_t end = std::min(t.begin + t.local.numel() - slice_begin, bucket.slice);
      if (begin >= end) continue;
      unit.tensors.push_back({.tensor = t.name,
                              .begin = begin,
                              .end = end,
                              .norm_weight = norm_weight(t),
                              .places = places_of(t, begin + slice_begin - t.begin)});
    }
    if (!unit.tensors.empty()) all.push_back(std::move(unit));
  }
  return all;
}

std::string Buckets::copies_note() const {
  constexpr double kMiB = 1024.0 * 1024.0;
  int64_t cast = 0;
  bool any_kept = false;
  for (const Bucket& bucket : layout_.buckets) {
    if (!bucket.is_here || layout_.compute == bucket.tensors[0].local.dtype) continue;
    if (bucket.has_low_precision && context_.options->low_precision.gathers()) continue;
    if (!bucket.copy.valid()) cast += bucket.slice * size_of(layout_.compute);
    any_kept = any_kept || bucket.copy.valid();
  }
  if (cast > 0) {
    return fmt::format(
        "compute copies: cast before each gather; slices that the update writes would take "
        "{:.1f} MiB",
        static_cast<double>(cast) / kMiB);
  }
  return any_kept ? "compute copies: written by the update" : "";
}

std::string moment_name(std::string_view moment, std::string_view parameter) {
  return fmt::format("optimizer.{}.{}", moment, parameter);
}

}  // namespace tokamak
