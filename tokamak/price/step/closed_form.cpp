#include "tokamak/price/step/closed_form.h"

#include <algorithm>

#include "tokamak/price/step/bucket_times.h"

namespace tokamak::price {
namespace {

// What rounding to the arenas' alignment adds, of a few thousand pieces.
constexpr double kAlignmentBytes = 1024.0 * 1024.0;

// All but the slots.
double rank_bytes(const StageCosts& c, const PipelineShape& shape, const DataSpread& spread,
                  const Elements& padded, int rank) {
  const auto at = static_cast<size_t>(rank);
  const StageModules& all = shape.modules_of[at];
  const auto more_stages = static_cast<double>(shape.stages_of[at].size() - 1);
  double elements = padded.of(all) + more_stages * padded.of.base;
  // A tied table is there once.
  if (all.has_embedding && all.has_head) elements -= padded.tied;
  double scratch = 0.0;
  for (const int s : shape.stages_of[at]) scratch = std::max(scratch, c.scratch(shape.stages[s]));
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
        const ReduceTail& tail = tails_[stage];
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
  int groups_of(int rank) const { return spread_.groups_of.empty() ? 0 : spread_.groups_of[rank]; }

  const Buckets& buckets_of(int rank) const { return buckets_[groups_of(rank)]; }

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
      tails_.push_back(is_same ? tails_.back()
                               : reduce_tail(stage, last, buckets_[groups], machine_));
    }
  }

  // What gathers add, after what ranks wait for anyway.
  double late_s() const {
    if (machine_.software.gather_overlap != 0) return late_beside_s();
    double late = 0.0;
    for (int r = 0; r < shape_.num_ranks; ++r) {
      const int first = shape_.stages_of[r].front();
      late = std::max(late, gathers_s(shape_, r, buckets_of(r)) - use_.firsts[first].begin_s);
    }
    return late;
  }

  // Where they run beside the items: first forwards wait for their buckets, and are slower beside
  // those that are left. What is late for a stage is late for those after it, and for its rank's
  // next.
  double late_beside_s() const {
    std::vector<GatherQueue> queues;
    queues.reserve(shape_.num_ranks);
    for (int r = 0; r < shape_.num_ranks; ++r)
      queues.emplace_back(gathers_s(shape_, r, buckets_of(r)));
    std::vector<double> late_of_rank(queues.size(), 0.0);
    double late_before = 0.0;  // of the stage before
    for (size_t s = 0; s < shape_.stages.size(); ++s) {
      const int rank = shape_.rank_of_stage[s];
      double& late = late_of_rank[rank];
      const PipelineUse::First& first = use_.firsts[s];
      const double begin_s = first.begin_s + std::max(late, late_before - first.slack_s);
      const double end_s =
          queues[rank].run(shape_.stages[s], first, begin_s, buckets_of(rank), machine_.software);
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
    const auto end_of = [&](int s) { return ends[s]; };
    double last_s = 0.0;
    std::vector<int> stages;
    for (const std::vector<int>& stages_of_rank : shape_.stages_of) {
      // Later stages mostly end first.
      stages.assign(stages_of_rank.rbegin(), stages_of_rank.rend());
      std::sort(stages.begin(), stages.end(), [&](int a, int b) { return end_of(a) < end_of(b); });
      double end_s = 0.0;
      for (const int s : stages) {
        const ReduceTail& tail = tails_[s];
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
    return buckets_of(rank).sum(shape_.modules_of[rank], &Bucket::update_s);
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

double least_seconds(const StageCosts& costs, const PipelineShape& shape, double hop_s) {
  const StageSeconds& c = costs.places.front().fast;         // no other is faster
  std::vector<double> before(shape.stages.size() + 1, 0.0);  // of the first microbatch
  std::vector<double> after(shape.stages.size() + 1, 0.0);   // of the last
  for (size_t s = 0; s < shape.stages.size(); ++s) {
    const bool hops =
        s + 1 < shape.stages.size() && shape.rank_of_stage[s] != shape.rank_of_stage[s + 1];
    const double hop = hops ? hop_s : 0.0;
    before[s + 1] = before[s] + c.forward(shape.stages[s]) + hop;
    after[s + 1] = after[s] + c.backward(shape.stages[s]) + hop;
  }
  double least = 0.0;
  for (const std::vector<int>& stages : shape.stages_of) {
    double work = 0.0;
    double first = 0.0;
    for (const int s : stages) {
      const StageModules& stage = shape.stages[s];
      const double backward = c.backward(stage) + c.weight(stage);
      work += c.forward(stage) + backward;
      first += c.first_backward(stage) + c.first_weight(stage) - backward;
    }
    const auto begin = static_cast<size_t>(stages.front());
    // Weight gradients may be all that is left when the last microbatch comes by.
    const double back = shape.is_split ? 0.0 : after[begin];
    least = std::max(least, before[begin] + shape.num_microbatches * work + first + back);
  }
  return least;
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
    for (const int s : shape.stages_of[r]) {
      double throughout = 0.0;
      double before = 0.0;
      double after = 0.0;
      for (const auto& [kind, bytes] : costs.held) {
        if (kind.from != kForward && kind.from != kBackwardInput) continue;
        const double size = held_bytes(kind, bytes, shape.stages[s]);
        if (kind.from == kForward && kind.to == kBackwardWeight) throughout += size;
        if (kind.from == kForward && kind.to == kBackwardInput) before += size;
        if (kind.from == kBackwardInput && kind.to == kBackwardWeight) after += size;
      }
      const double held = throughout + (shape.is_split ? std::min(before, after) : before);
      least_held = is_first ? held : std::min(least_held, held);
      is_first = false;
    }
    most = std::max(
        most, rank_bytes(costs, shape, spread, elements, r) + shape.in_flight[r] * least_held);
  }
  return most;
}

ClosedForm closed_form(const FlatCosts& costs, int layers) {
  return {.seconds = costs.step_s(layers),
          .bytes = costs.held(layers) + std::max(costs.scratch(layers), costs.unshard_scratch)};
}

}  // namespace tokamak::price
