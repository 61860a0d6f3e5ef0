#include "tokamak/price/closed_form.h"

#include <algorithm>
#include <cmath>

#include "tokamak/price/task_time.h"

namespace tokamak::price {
namespace {

// Parameters of stages, with what buckets add so that owners have whole slices.
struct Elements {
  Elements(const StageCosts& c, int owners) {
    const double unit = c.slice_unit * owners;
    const auto pad = [&](double elements) { return std::ceil(elements / unit) * unit; };
    tied = pad(c.tied_elements);
    of = {.base = c.elements.base,
          .layer = pad(c.elements.layer),
          .embedding = tied + pad(c.elements.embedding - c.tied_elements),
          .head = tied + pad(c.elements.head - c.tied_elements)};
  }

  StageSum of;
  double tied = 0.0;  // of a tied table
};

Communication sum_of_gradients(Collective kind, double elements, const StageCosts& costs) {
  return {.kind = kind,
          .bytes = elements * costs.bytes.gradient,
          .sums_gradients = costs.bytes.gradient == sizeof(float)};
}

// Buckets of a kind that a rank holds, and what one of them costs at the ends of a step.
struct Bucket {
  double elements = 0.0;
  double gather_s = 0.0;  ///< 0 with one owner
  double reduce_s = 0.0;
  double shared_s = 0.0;  ///< of `reduce_s`, over the link that collectives inside stages take
  double update_s = 0.0;
};

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

// Of a rank whose groups are these.
struct Buckets {
  Buckets(const StageCosts& c, const DataSpread& spread, const DataSpread::Groups& groups,
          const Machine& machine) {
    const StageSum& tp_reduce = c.places[static_cast<size_t>(groups.place)].fast.tp_reduce;
    const int stage_link = link_of(strided_layout(c.span, 1, machine));
    const Elements elements(c, spread.owners);
    const auto bucket = [&](double StageSum::*of) {
      return bucket_of(elements.of.*of, tp_reduce.*of, c, spread, groups, stage_link, machine);
    };
    layer = bucket(&StageSum::layer);
    embedding = bucket(&StageSum::embedding);
    head = bucket(&StageSum::head);
    gathers_share_link = link_of(groups.shard) == stage_link;
  }

  /// Of all that a stage holds, one after the other.
  double sum(const StageModules& stage, double Bucket::*seconds) const {
    return (stage.has_embedding ? embedding.*seconds : 0.0) + stage.layers * (layer.*seconds) +
           (stage.has_head ? head.*seconds : 0.0);
  }

  Bucket layer;
  Bucket embedding;
  Bucket head;
  bool gathers_share_link = false;  ///< with collectives inside stages
};

// Gathers of a rank, bucket by bucket.
double unshard_s(const PipelineShape& shape, int rank, const Buckets& b) {
  double seconds = 0.0;
  for (const int s : shape.stages_of[static_cast<size_t>(rank)])
    seconds += b.sum(shape.stages[static_cast<size_t>(s)], &Bucket::gather_s);
  return seconds;
}

// Gathers of a rank that run beside its first forwards.
class GatherQueue {
 public:
  // `seconds` of them, alone.
  explicit GatherQueue(double seconds) : left_s_(seconds) {}

  // Until a stage's forward that may begin at `begin` has ended.
  double run(const StageModules& stage, const PipelineUse::First& first, double begin,
             const Buckets& b, const Software& software) {
    advance(begin - now_s_);
    const int parts = stage.layers + (stage.has_head ? 1 : 0) + (stage.has_embedding ? 1 : 0);
    if (parts == 0) return begin + first.kernels_s + first.communication_s;
    const double kernels_s = first.kernels_s / parts;
    const double communication_s = first.communication_s / parts;
    const double shared = b.gathers_share_link ? 1.0 : 0.0;
    const double slowest_s =
        kernels_s * software.compute_slowdown + (1.0 + shared) * communication_s;
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

 private:
  void done(double seconds) {
    done_s_ += seconds;
    left_s_ -= seconds;
  }

  void advance(double seconds) {
    now_s_ += seconds;
    done(std::min(seconds, left_s_));
  }

  double now_s_ = 0.0;  // until when it has run
  double left_s_;
  double done_s_ = 0.0;
  double due_s_ = 0.0;  // of those that the forwards so far have waited for
};

// A stage's last backward with its reductions, which it hides in part: what comes after its seconds
// without them.
struct ReduceTail {
  double compute_s = 0.0;  ///< until its compute has ended, which reductions slow
  double reduce_s = 0.0;   ///< until both have ended
  double all_s = 0.0;      ///< of the reductions themselves
  double alone_s = 0.0;    ///< of the backward itself
  double rate = 1.0;       ///< of reductions beside it
};

ReduceTail reduce_tail(const StageModules& stage, const PipelineUse::Last& last, const Buckets& b,
                       const Machine& machine) {
  const int parts = stage.layers + (stage.has_head ? 1 : 0) + (stage.has_embedding ? 1 : 0);
  if (parts == 0) return {};
  const Software& software = machine.software;
  // Beside a reduction that outlives its item and a message a kernel takes as much longer as beside
  // the slower one; of whole items messages slow what reductions have slowed.
  const double with_both = software.reduction_overlap != 0
                               ? std::max(1.0, software.compute_slowdown / last.message_slowdown)
                               : software.compute_slowdown;
  const double with_reduction =
      (1.0 - last.message_share) * software.compute_slowdown + last.message_share * with_both;
  // Each layer's share, and what of a reduction is done beside all of it.
  const double kernels_s = last.kernels_s / parts;
  const double communication_s = last.communication_s / parts;
  const double part_s = kernels_s + communication_s;
  // Collectives of both that share a link take turns.
  const double shared = b.layer.reduce_s > 0.0 ? b.layer.shared_s / b.layer.reduce_s : 0.0;
  const double slowest_s = kernels_s * with_reduction + (1.0 + shared) * communication_s;
  const double reduced_s =
      kernels_s * with_reduction / software.collective_slowdown + communication_s;
  const double rate = slowest_s > 0.0 ? reduced_s / slowest_s : 1.0;
  const double beside = reduced_s > 0.0 ? std::min(1.0, b.layer.reduce_s / reduced_s) : 0.0;
  const double slowed_s = part_s + beside * (slowest_s - part_s);
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

// What rounding to the arenas' alignment adds, of a few thousand pieces.
constexpr double kAlignmentBytes = 1024.0 * 1024.0;

// All but the slots.
double rank_bytes(const StageCosts& c, const PipelineShape& shape, const DataSpread& spread,
                  const Elements& padded, int rank) {
  double elements = 0.0;
  double scratch = 0.0;
  bool has_start = false;
  bool has_ends = false;
  for (const int s : shape.stages_of[static_cast<size_t>(rank)]) {
    const StageModules& stage = shape.stages[static_cast<size_t>(s)];
    elements += padded.of(stage);
    scratch = std::max(scratch, c.scratch(stage));
    has_start = has_start || stage.has_embedding;
    has_ends = has_start && stage.has_head;
  }
  // A tied table is there once.
  if (has_ends) elements -= padded.tied;
  return kAlignmentBytes + state_bytes(elements, c.bytes, {.owners = spread.owners}) +
         c.input_bytes + scratch;
}

class Pipeline {
 public:
  Pipeline(const StageCosts& costs, const PipelineShape& shape, const PipelineUse& use,
           const DataSpread& spread, const Machine& machine)
      : c_(costs), shape_(shape), use_(use), spread_(spread), machine_(machine) {
    buckets_.reserve(spread.groups.size());
    for (const DataSpread::Groups& groups : spread.groups)
      buckets_.emplace_back(costs, spread, groups, machine);
  }

  ClosedForm run() {
    time_reductions();
    const bool outlive = machine_.software.reduction_overlap != 0;
    double seconds = outlive ? last_reduction_s() : 0.0;
    for (const PipelineUse::Path& path : use_.paths) {
      double length = path.seconds;
      for (const int stage : path.reductions) {
        const ReduceTail& tail = tails_[static_cast<size_t>(stage)];
        length += outlive ? tail.compute_s : tail.reduce_s;
      }
      seconds = std::max(seconds, length);
    }
    double update = 0.0;
    double bytes = 0.0;
    const Elements elements(c_, spread_.owners);
    for (int r = 0; r < shape_.num_ranks; ++r) {
      const auto at = static_cast<size_t>(r);
      update = std::max(update, update_s(r));
      bytes = std::max(bytes, use_.slot_bytes[at] + rank_bytes(c_, shape_, spread_, elements, r));
    }
    seconds -= use_.cooler_s / spread_.owners;
    seconds += late_s() + update + spread_.norm_s + tie_s() + machine_.software.step_overhead_s;
    return {.seconds = seconds, .bytes = bytes};
  }

 private:
  int groups_of(int rank) const {
    return spread_.groups_of.empty() ? 0 : spread_.groups_of[static_cast<size_t>(rank)];
  }

  const Buckets& buckets_of(int rank) const {
    return buckets_[static_cast<size_t>(groups_of(rank))];
  }

  void time_reductions() {
    tails_.reserve(shape_.stages.size());
    int groups_before = -1;
    for (size_t s = 0; s < shape_.stages.size(); ++s) {
      const StageModules& stage = shape_.stages[s];
      const int groups = groups_of(shape_.rank_of_stage[s]);
      const PipelineUse::Last& last = use_.lasts[s];
      const bool is_same = groups == groups_before && shape_.stages[s - 1] == stage &&
                           use_.lasts[s - 1].takes_as_long_as(last);
      groups_before = groups;
      tails_.push_back(
          is_same ? tails_.back()
                  : reduce_tail(stage, last, buckets_[static_cast<size_t>(groups)], machine_));
    }
  }

  // What gathers add, after what ranks wait for anyway.
  double late_s() const {
    if (machine_.software.gather_overlap != 0) return late_beside_s();
    double late = 0.0;
    for (int r = 0; r < shape_.num_ranks; ++r) {
      const int first = shape_.stages_of[static_cast<size_t>(r)].front();
      late = std::max(late, unshard_s(shape_, r, buckets_of(r)) -
                                use_.firsts[static_cast<size_t>(first)].begin_s);
    }
    return late;
  }

  // Where they run beside the items: first forwards wait for their buckets, and are slower beside
  // those that are left. What is late for a stage is late for those after it, and for its rank's
  // next.
  double late_beside_s() const {
    std::vector<GatherQueue> queues;
    for (int r = 0; r < shape_.num_ranks; ++r)
      queues.emplace_back(unshard_s(shape_, r, buckets_of(r)));
    std::vector<double> late_of_rank(queues.size(), 0.0);
    double late_before = 0.0;  // of the stage before
    for (size_t s = 0; s < shape_.stages.size(); ++s) {
      const int rank = shape_.rank_of_stage[s];
      double& late = late_of_rank[static_cast<size_t>(rank)];
      const PipelineUse::First& first = use_.firsts[s];
      const double begin_s = first.begin_s + std::max(late, late_before - first.slack_s);
      const double end_s = queues[static_cast<size_t>(rank)].run(
          shape_.stages[s], first, begin_s, buckets_of(rank), machine_.software);
      late_before = late = end_s - first.begin_s - first.kernels_s - first.communication_s;
    }
    return *std::max_element(late_of_rank.begin(), late_of_rank.end());
  }

  // By stage, where the pipeline goes on beside reductions: they slow the last backwards that
  // others wait for.
  std::vector<double> ends_of_lasts() const {
    std::vector<double> late_s(use_.lasts.size(), 0.0);
    std::vector<double> ends(use_.lasts.size());
    for (const int s : use_.order_of_lasts) {
      const auto at = static_cast<size_t>(s);
      const PipelineUse::Last& last = use_.lasts[at];
      const auto after = static_cast<size_t>(last.after);
      if (last.after >= 0) late_s[at] = late_s[after] + tails_[after].compute_s;
      ends[at] = last.end_s + late_s[at];
    }
    return ends;
  }

  // The end of the last reduction where the pipeline goes on beside them: those of a rank's stages
  // come one after the other, slower beside last backwards.
  double last_reduction_s() const {
    const std::vector<double> ends = ends_of_lasts();
    const auto end_of = [&](int s) { return ends[static_cast<size_t>(s)]; };
    double last_s = 0.0;
    for (std::vector<int> stages : shape_.stages_of) {
      std::sort(stages.begin(), stages.end(), [&](int a, int b) { return end_of(a) < end_of(b); });
      double end_s = 0.0;
      for (const int s : stages) {
        const ReduceTail& tail = tails_[static_cast<size_t>(s)];
        const double begin_s = end_of(s) - tail.alone_s;
        const double beside_s = tail.alone_s + tail.compute_s;
        const double queued_s = std::max(0.0, end_s - begin_s) + tail.all_s;
        const double slower_s = std::min(queued_s / tail.rate, beside_s) * (1.0 - tail.rate);
        end_s = std::max(end_of(s) + tail.reduce_s, begin_s + queued_s + slower_s);
      }
      last_s = std::max(last_s, end_s);
    }
    return last_s;
  }

  // Gradients of a table that both ends of the pipeline hold.
  double tie_s() const {
    if (c_.tied_elements == 0.0 || shape_.rank_of_stage.front() == shape_.rank_of_stage.back())
      return 0.0;
    // In the update, where plans sum what they hold.
    return communication_seconds({.kind = Collective::kAllReduce,
                                  .bytes = c_.tied_elements / spread_.owners * c_.bytes.gradient},
                                 spread_.ends, machine_);
  }

  double update_s(int rank) const {
    double seconds = 0.0;
    for (const int s : shape_.stages_of[static_cast<size_t>(rank)])
      seconds += buckets_of(rank).sum(shape_.stages[static_cast<size_t>(s)], &Bucket::update_s);
    return seconds;
  }

  const StageCosts& c_;
  const PipelineShape& shape_;
  const PipelineUse& use_;
  const DataSpread& spread_;
  const Machine& machine_;
  std::vector<Buckets> buckets_;   // by spread_.groups
  std::vector<ReduceTail> tails_;  // by stage
};

}  // namespace

ClosedForm closed_form(const StageCosts& costs, const PipelineShape& shape, const PipelineUse& use,
                       const DataSpread& spread, const Machine& machine) {
  return Pipeline(costs, shape, use, spread, machine).run();
}

double least_flat_seconds(const StageCosts& costs, const StageModules& model, int num_microbatches,
                          const DataSpread& spread, const Machine& machine) {
  const Buckets buckets(costs, spread, spread.groups.front(), machine);
  const StageSeconds& work = costs.places.front().fast;
  const double forward_s = work.forward(model);
  const double backward_s = work.backward(model);
  return (num_microbatches - 1) * (forward_s + backward_s) +
         std::max(forward_s, buckets.sum(model, &Bucket::gather_s)) +
         std::max(backward_s, buckets.sum(model, &Bucket::reduce_s));
}

double state_bytes(double elements, const ElementBytes& bytes, const Slices& slices) {
  const double slice = elements / slices.owners;
  const bool has_copies = !slices.of_copies && (slices.owners > 1 || bytes.compute != bytes.master);
  return slice * 3.0 * bytes.master + (slices.of_gradients ? slice : elements) * bytes.gradient +
         (has_copies ? elements * bytes.compute : 0.0);
}

double held_bytes(const HeldKind& kind, const StageSum& size, const StageModules& stage) {
  // What a layer keeps of the embedding before it; the embedding keeps nothing, as it reads tokens.
  const bool is_embedding_alone = stage.layers == 0 && stage.has_embedding && !stage.has_head;
  const bool is_kept =
      kind.from == PipelineItemKind::kForward && kind.to != PipelineItemKind::kSendForward;
  return is_embedding_alone && is_kept ? 0.0 : size(stage);
}

double least_bytes(const StageCosts& costs, const PipelineShape& shape, const DataSpread& spread) {
  using enum PipelineItemKind;
  const Elements elements(costs, spread.owners);
  double most = 0.0;
  for (int r = 0; r < shape.num_ranks; ++r) {
    double least_held = 0.0;  // of a microbatch in flight
    bool is_first = true;
    for (const int s : shape.stages_of[static_cast<size_t>(r)]) {
      double throughout = 0.0;
      double before = 0.0;
      double after = 0.0;
      for (const auto& [kind, bytes] : costs.held) {
        if (kind.from != kForward && kind.from != kBackwardInput) continue;
        const double size = held_bytes(kind, bytes, shape.stages[static_cast<size_t>(s)]);
        if (kind.from == kForward && kind.to == kBackwardWeight) throughout += size;
        if (kind.from == kForward && kind.to == kBackwardInput) before += size;
        if (kind.from == kBackwardInput && kind.to == kBackwardWeight) after += size;
      }
      const double held = throughout + (shape.is_split ? std::min(before, after) : before);
      least_held = is_first ? held : std::min(least_held, held);
      is_first = false;
    }
    most = std::max(most, rank_bytes(costs, shape, spread, elements, r) +
                              shape.in_flight[static_cast<size_t>(r)] * least_held);
  }
  return most;
}

ClosedForm closed_form(const FlatCosts& costs, int layers) {
  return {.seconds = costs.step_s(layers),
          .bytes = costs.held(layers) + std::max(costs.scratch(layers), costs.unshard_scratch)};
}

}  // namespace tokamak::price
