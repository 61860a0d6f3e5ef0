#include "tokamak/price/step/bucket_times.h"

#include <cmath>

namespace tokamak::price {
namespace {

Communication sum_of_gradients(Collective kind, double elements, const StageCosts& costs) {
  return {.kind = kind,
          .bytes = elements * costs.bytes.gradient,
          .sums_gradients = costs.bytes.gradient == sizeof(float)};
}

Bucket bucket_of(double elements, double tp_reduce_s, const StageCosts& costs,
                 const DataSpread& spread, const DataSpread::Groups& groups, int stage_link,
                 const Machine& machine) {
  if (elements <= 0.0) return {};
  const double slice = elements / spread.owners;
  Bucket bucket{.elements = elements, .reduce_s = tp_reduce_s, .shared_s = tp_reduce_s};
  const auto reduce = [&](Collective kind, double count, const GroupLayout& group) {
    const double seconds =
        communication_seconds(sum_of_gradients(kind, count, costs), group, machine);
    bucket.reduce_s += seconds;
    if (link_of(group) == stage_link) bucket.shared_s += seconds;
  };
  if (spread.owners > 1) {
    bucket.gather_s = communication_seconds(
        {.kind = Collective::kAllGather, .bytes = elements * costs.bytes.compute}, groups.shard,
        machine);
    reduce(Collective::kReduceScatter, elements, groups.shard);
  }
  if (spread.replicas > 1) reduce(Collective::kAllReduce, slice, groups.replica);
  bucket.update_s = slice * costs.update_s + costs.update_kernels * machine.device.launch_s;
  return bucket;
}

// A layer's work beside the reductions of the layer before it, which begin with it: those over the
// link of its own collectives come first and take turns with them.
class LayerBeside {
 public:
  LayerBeside(const Bucket& bucket, double kernel_slowdown, double reduction_slowdown)
      : left_s_(bucket.reduce_s),
        left_shared_s_(bucket.shared_s),
        kernel_slowdown_(kernel_slowdown),
        reduction_slowdown_(reduction_slowdown) {}

  void run(double kernels_s, double communication_s) {
    const double slowed_s = kernels_s * kernel_slowdown_;
    add(slowed_s, kernels_s, slowed_s / reduction_slowdown_);
    const double turns_s = std::min(communication_s, left_shared_s_);
    add(2.0 * turns_s, turns_s, turns_s);
    const double rest_s = communication_s - turns_s;
    add(rest_s, rest_s, rest_s);
  }

  double seconds() const { return seconds_; }

  /// Of the reductions while they last.
  double rate() const { return beside_s_ > 0.0 ? reduced_s_ / beside_s_ : 1.0; }

 private:
  // What takes `slowed_s` beside `reduced_s` of reductions, and else `alone_s`.
  void add(double slowed_s, double alone_s, double reduced_s) {
    const double share = reduced_s > 0.0 ? std::min(1.0, left_s_ / reduced_s) : 0.0;
    seconds_ += share * slowed_s + (1.0 - share) * alone_s;
    beside_s_ += share * slowed_s;
    reduced_s_ += share * reduced_s;
    left_s_ -= share * reduced_s;
    left_shared_s_ = std::max(0.0, left_shared_s_ - share * reduced_s);
  }

  double left_s_;
  double left_shared_s_;
  double kernel_slowdown_;
  double reduction_slowdown_;
  double seconds_ = 0.0;
  double beside_s_ = 0.0;
  double reduced_s_ = 0.0;
};

}  // namespace

Elements::Elements(const StageCosts& c, int owners) {
  const double unit = c.slice_unit * owners;
  const auto pad = [&](double elements) { return std::ceil(elements / unit) * unit; };
  tied = pad(c.tied_elements);
  of = {.base = c.elements.base,
        .layer = pad(c.elements.layer),
        .embedding = tied + pad(c.elements.embedding - c.tied_elements),
        .head = tied + pad(c.elements.head - c.tied_elements)};
}

Buckets::Buckets(const StageCosts& c, const DataSpread& spread, const DataSpread::Groups& groups,
                 const Machine& machine) {
  const StageSeconds& stage = c.places[groups.place].fast;
  const int stage_link = link_of(strided_layout(c.span, 1, machine));
  const Elements elements(c, spread.owners);
  const auto bucket = [&](double StageSum::*of) {
    return bucket_of(elements.of.*of, stage.tp_reduce.*of, c, spread, groups, stage_link, machine);
  };
  layer = bucket(&StageSum::layer);
  embedding = bucket(&StageSum::embedding);
  head = bucket(&StageSum::head);
  gathers_share_link = link_of(groups.shard) == stage_link;
  stretches = stage.stretches;
}

double gathers_s(const PipelineShape& shape, int rank, const Buckets& b) {
  return b.sum(shape.modules_of[rank], &Bucket::gather_s);
}

double GatherQueue::run(const StageModules& stage, const PipelineUse::First& first, double begin,
                        const Buckets& b, const Software& software) {
  advance(begin - now_s_);
  const int parts = stage.num_parts();
  if (parts == 0) return begin + first.kernels_s + first.communication_s;
  const double kernels_s = first.kernels_s / parts;
  const double communication_s = first.communication_s / parts;
  const double shared = b.gathers_share_link ? 1.0 : 0.0;
  const double slowest_s = kernels_s * software.compute_slowdown + (1.0 + shared) * communication_s;
  const double gathered_s =
      kernels_s * software.compute_slowdown / software.collective_slowdown + communication_s;
  const auto add = [&](const Bucket& bucket) {
    due_s_ += bucket.gather_s;
    if (due_s_ > done_s_) advance(due_s_ - done_s_);
    const double beside = gathered_s > 0.0 ? std::min(1.0, left_s_ / gathered_s) : 0.0;
    now_s_ += kernels_s + communication_s + beside * (slowest_s - kernels_s - communication_s);
    done(beside * gathered_s);
  };
  if (stage.has_embedding) add(b.embedding);
  for (int l = 0; l < stage.layers; ++l) add(b.layer);
  if (stage.has_head) add(b.head);
  return now_s_;
}

ReduceTail reduce_tail(const StageModules& stage, const PipelineUse::Last& last, const Buckets& b,
                       const Machine& machine) {
  const int parts = stage.num_parts();
  if (parts == 0) return {};
  const Software& software = machine.software;
  // Beside a reduction that outlives its item and a message a kernel takes as much longer as beside
  // the slower one; of whole items messages slow what reductions have slowed.
  const double with_both = software.reduction_overlap != 0
                               ? std::max(1.0, software.compute_slowdown / last.message_slowdown)
                               : software.compute_slowdown;
  const double with_reduction =
      (1.0 - last.message_share) * software.compute_slowdown + last.message_share * with_both;
  const double kernels_s = last.kernels_s / parts;
  const double communication_s = last.communication_s / parts;
  const double part_s = kernels_s + communication_s;
  LayerBeside layer(b.layer, with_reduction, software.collective_slowdown);
  if (b.stretches.empty()) layer.run(kernels_s, communication_s);
  for (const Stretch& stretch : b.stretches)
    layer.run(kernels_s * stretch.kernels, communication_s * stretch.communication);
  const double slowed_s = layer.seconds();
  const double rate = layer.rate();
  const double all_compute_s = part_s + (parts - 1) * slowed_s;
  double reduce_end = 0.0;
  double compute_end = 0.0;
  double all_s = 0.0;
  const auto add = [&](const Bucket& bucket) {
    compute_end += compute_end == 0.0 ? part_s : slowed_s;
    const double start = std::max(reduce_end, compute_end);
    const double beside_s = std::min(bucket.reduce_s / rate, std::max(0.0, all_compute_s - start));
    reduce_end = start + bucket.reduce_s + beside_s * (1.0 - rate);
    all_s += bucket.reduce_s;
  };
  if (stage.has_head) add(b.head);
  for (int l = 0; l < stage.layers; ++l) add(b.layer);
  if (stage.has_embedding) add(b.embedding);
  const double alone_s = part_s * parts;
  return {.compute_s = compute_end - alone_s,
          .reduce_s = std::max(reduce_end, compute_end) - alone_s,
          .all_s = all_s,
          .alone_s = alone_s,
          .rate = rate};
}

}  // namespace tokamak::price
