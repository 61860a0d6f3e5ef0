#include "tokamak/price/closed_form.h"

#include <algorithm>
#include <array>

#include "tokamak/core/error.h"
#include "tokamak/graph/timeline.h"
#include "tokamak/parallel/schedules.h"
#include "tokamak/price/task_time.h"

namespace tokamak::price {
namespace {

// Beyond so many microbatches for each rank a schedule only repeats itself.
constexpr int kRepeatsAfter = 4;

// From the beginning of an op of kind `from` to the end of one of kind `to`.
PipelineShape::Held held_between(const PipelineSchedule& schedule, PipelineOp from, PipelineOp to) {
  PipelineShape::Held peaks;
  peaks.by_stage.assign(static_cast<size_t>(schedule.num_stages()), 0);
  std::vector<int> held(peaks.by_stage);
  for (const auto& actions : schedule.actions) {
    int all = 0;
    int most = 0;
    for (const PipelineAction& a : actions) {
      const auto s = static_cast<size_t>(a.stage);
      if (a.op == from) {
        most = std::max(most, ++all);
        peaks.by_stage[s] = std::max(peaks.by_stage[s], ++held[s]);
      }
      if (a.op == to) {
        --all;
        --held[s];
      }
    }
    peaks.by_rank.push_back(most);
  }
  return peaks;
}

bool is_plain_1f1b(const std::string& name, int stages_per_rank) {
  return name == "1F1B" && stages_per_rank == 1;
}

// Buckets of a kind that a rank holds, and what one of them costs at the ends of a step.
struct Bucket {
  double elements = 0.0;
  double gather_s = 0.0;  ///< 0 with one owner
  double cast_s = 0.0;
  double reduce_s = 0.0;
  double update_s = 0.0;
};

Bucket bucket_of(double elements, double tp_reduce_s, const StageCosts& costs,
                 const DataSpread& spread, const Machine& machine) {
  if (elements <= 0.0) return {};
  const double launch_s = machine.device.launch_s;
  const double slice = elements / spread.owners;
  Bucket bucket{.elements = elements, .reduce_s = tp_reduce_s};
  if (costs.compute_bytes != costs.master_bytes)
    bucket.cast_s =
        memory_seconds(slice * (costs.master_bytes + costs.compute_bytes), machine) + launch_s;
  if (spread.owners > 1) {
    bucket.gather_s =
        launch_s + collective_seconds(Collective::kAllGather, elements * costs.compute_bytes,
                                      spread.shard, machine);
    bucket.reduce_s +=
        launch_s + collective_seconds(Collective::kReduceScatter, elements * costs.gradient_bytes,
                                      spread.shard, machine);
  }
  if (spread.replicas > 1)
    bucket.reduce_s +=
        launch_s + collective_seconds(Collective::kAllReduce, slice * costs.gradient_bytes,
                                      spread.replica, machine);
  bucket.update_s = slice * costs.update_s + costs.update_kernels * launch_s;
  return bucket;
}

struct Buckets {
  Bucket layer;
  Bucket embedding;
  Bucket head;
};

// Casts on one stream, gathers on another, bucket by bucket.
double unshard_s(const PipelineShape& shape, int rank, const Buckets& b) {
  double cast_end = 0.0;
  double gather_end = 0.0;
  const auto add = [&](const Bucket& bucket) {
    cast_end += bucket.cast_s;
    gather_end = std::max(gather_end, cast_end) + bucket.gather_s;
  };
  for (const int s : shape.stages_of[static_cast<size_t>(rank)]) {
    const StageModules& stage = shape.stages[static_cast<size_t>(s)];
    if (stage.has_embedding) add(b.embedding);
    for (int l = 0; l < stage.layers; ++l) add(b.layer);
    if (stage.has_head) add(b.head);
  }
  return std::max(cast_end, gather_end);
}

// By how much reductions lengthen the last backward of a stage, which hides some of them.
double reduce_tail_s(const StageModules& stage, double compute_s, const Buckets& b,
                     const Machine& machine) {
  const double with_comm = machine.software.compute_slowdown;
  const double with_compute = machine.software.collective_slowdown;
  const int parts = stage.layers + (stage.has_head ? 1 : 0) + (stage.has_embedding ? 1 : 0);
  if (parts == 0) return 0.0;
  // Each layer's share; what lies beside the other kind takes longer.
  const double part_s = compute_s / parts;
  const double beside_s = std::min(part_s * with_comm, b.layer.reduce_s * with_compute);
  const double slowed_s = part_s + beside_s * (1.0 - 1.0 / with_comm);
  double reduce_end = 0.0;
  double compute_end = 0.0;
  const auto add = [&](const Bucket& bucket) {
    compute_end += compute_end == 0.0 ? part_s : slowed_s;
    const double over = std::max(0.0, compute_end - reduce_end);
    const double start = reduce_end + over;
    const double beside = std::min(bucket.reduce_s, slowed_s);
    reduce_end = start + bucket.reduce_s + beside * (1.0 - 1.0 / with_compute);
  };
  if (stage.has_head) add(b.head);
  for (int l = 0; l < stage.layers; ++l) add(b.layer);
  if (stage.has_embedding) add(b.embedding);
  return std::max(reduce_end, compute_end) - compute_s;
}

struct StageTimes {
  double forward_s = 0.0;
  double backward_s = 0.0;
  double tail_s = 0.0;  ///< in the last microbatch
};

struct RankSums {
  double work_s = 0.0;  ///< of a microbatch through all its stages
  double tail_s = 0.0;
  double first_s = 0.0;  ///< what the first microbatch saves
};

class Pipeline {
 public:
  Pipeline(const StageCosts& costs, const PipelineShape& shape, const DataSpread& spread,
           double idle_s, const Machine& machine)
      : c_(costs), shape_(shape), spread_(spread), idle_s_(idle_s), machine_(machine) {
    buckets_.layer = bucket_of(c_.elements.layer, c_.tp_reduce_s.layer, c_, spread, machine);
    buckets_.embedding =
        bucket_of(c_.elements.embedding, c_.tp_reduce_s.embedding, c_, spread, machine);
    buckets_.head = bucket_of(c_.elements.head, c_.tp_reduce_s.head, c_, spread, machine);
  }

  ClosedForm run() {
    time_stages();
    double seconds = shape_.is_split ? split_s() : unsplit_s();
    double update = 0.0;
    double bytes = 0.0;
    for (int r = 0; r < shape_.num_ranks; ++r) {
      update = std::max(update, update_s(r));
      bytes = std::max(bytes, rank_bytes(r));
    }
    seconds += unshard_s(shape_, 0, buckets_) + update + spread_.norm_s + tie_s() +
               machine_.software.step_overhead_s;
    return {.seconds = seconds, .bytes = bytes};
  }

 private:
  const StageTimes& first_of(int rank) const {
    return times_[static_cast<size_t>(shape_.stages_of[static_cast<size_t>(rank)].front())];
  }

  const StageTimes& last_of(int rank) const {
    return times_[static_cast<size_t>(shape_.stages_of[static_cast<size_t>(rank)].back())];
  }

  void time_stages() {
    times_.reserve(shape_.stages.size());
    sums_.resize(static_cast<size_t>(shape_.num_ranks));
    const StageModules* before = nullptr;
    for (size_t s = 0; s < shape_.stages.size(); ++s) {
      const StageModules& stage = shape_.stages[s];
      RankSums& sum = sums_[static_cast<size_t>(shape_.rank_of_stage[s])];
      const bool is_same = before != nullptr && before->layers == stage.layers &&
                           !before->has_embedding && !stage.has_head;
      if (is_same) {
        times_.push_back(times_.back());
      } else {
        const double weight_s = c_.weight_s(stage);
        StageTimes t{.forward_s = c_.forward_s(stage), .backward_s = c_.backward_s(stage)};
        t.tail_s =
            reduce_tail_s(stage, shape_.is_split ? weight_s : t.backward_s, buckets_, machine_);
        t.backward_s += weight_s;
        first_s_ = t.backward_s - c_.first_backward_s(stage) - c_.first_weight_s(stage);
        times_.push_back(t);
      }
      before = &stage;
      sum.work_s += times_.back().forward_s + times_.back().backward_s;
      sum.tail_s += times_.back().tail_s;
      sum.first_s += first_s_;
    }
  }

  // The busiest rank's work, the way of the first microbatch to it and of the last one from it.
  double unsplit_s() const {
    const int p = shape_.num_ranks;
    const int m = shape_.num_microbatches;
    const double hops_s = 2.0 * spread_.hop_s;
    double before = 0.0;  // both ways through the first stages of the ranks before
    double after = 0.0;   // and through the last ones of those behind
    for (int r = 1; r < p; ++r) after += last_of(r).forward_s + last_of(r).backward_s + hops_s;
    double seconds = 0.0;
    for (int r = 0; r < p; ++r) {
      const RankSums& sum = sums_[static_cast<size_t>(r)];
      double work = m * sum.work_s - sum.first_s;
      // Beyond the lead of a rank, a microbatch waits for the round trip of an earlier one.
      const int lead = std::min(m, p - r);
      if (laps() == 1) work += (m - lead) * std::max(0.0, (sum.work_s + after) / lead - sum.work_s);
      seconds = std::max(seconds, before + work + after);
      before += first_of(r).forward_s + first_of(r).backward_s + hops_s;
      if (r + 1 < p) after -= last_of(r + 1).forward_s + last_of(r + 1).backward_s + hops_s;
    }
    return seconds + waits_between_laps();
  }

  // Gradients of a table that both ends of the pipeline hold.
  double tie_s() const {
    if (!c_.is_tied || shape_.rank_of_stage.front() == shape_.rank_of_stage.back()) return 0.0;
    const double bytes = c_.elements.embedding / spread_.owners * c_.gradient_bytes;
    return machine_.device.launch_s +
           collective_seconds(Collective::kAllReduce, bytes, spread_.ends, machine_);
  }

  int laps() const { return static_cast<int>(shape_.stages.size()) / shape_.num_ranks; }

  // A group of microbatches goes once round the ranks before the next lap begins; a lap takes as
  // long as one microbatch does where that is longer. The last one is held up by reductions.
  double waits_between_laps() const {
    const int p = shape_.num_ranks;
    const int m = shape_.num_microbatches;
    const int groups = std::max(1, m / p);
    const int first_group = (m + groups - 1) / groups;
    const int last_group = m / groups;
    double seconds = 0.0;
    for (int lap = 0; lap < laps(); ++lap) {
      double forward = 0.0;
      double backward = 0.0;
      double tails = 0.0;
      double longest = 0.0;
      double longest_back = 0.0;
      double longest_tail = 0.0;
      for (int r = 0; r < p; ++r) {
        const StageTimes& t = times_[static_cast<size_t>(lap * p + r)];
        forward += t.forward_s + spread_.hop_s;
        backward += t.backward_s + t.tail_s + spread_.hop_s;
        tails += t.tail_s;
        longest = std::max(longest, t.forward_s);
        longest_back = std::max(longest_back, t.backward_s);
        longest_tail = std::max(longest_tail, t.tail_s);
      }
      if (lap + 1 < laps()) seconds += std::max(0.0, forward - first_group * longest);
      seconds += lap == 0 ? tails : std::max(longest_tail, backward - last_group * longest_back);
    }
    return seconds;
  }

  double split_s() const {
    double busiest = 0.0;
    for (const RankSums& sum : sums_)
      busiest = std::max(busiest, shape_.num_microbatches * sum.work_s - sum.first_s + sum.tail_s);
    return busiest + idle_s_;
  }

  double update_s(int rank) const {
    double seconds = 0.0;
    for (const int s : shape_.stages_of[static_cast<size_t>(rank)]) {
      const StageModules& stage = shape_.stages[static_cast<size_t>(s)];
      seconds += stage.layers * buckets_.layer.update_s;
      if (stage.has_embedding) seconds += buckets_.embedding.update_s;
      if (stage.has_head) seconds += buckets_.head.update_s;
    }
    return seconds;
  }

  double rank_bytes(int rank) const {
    const auto r = static_cast<size_t>(rank);
    double elements = 0.0;
    double scratch = 0.0;
    double in_cast = 0.0;
    bool has_ends = false;
    bool has_start = false;
    for (const int s : shape_.stages_of[r]) {
      const StageModules& stage = shape_.stages[static_cast<size_t>(s)];
      elements += c_.elements(stage);
      scratch = std::max(scratch, c_.scratch(stage));
      has_start = has_start || stage.has_embedding;
      has_ends = has_start && stage.has_head;
      double three = 3.0 * buckets_.layer.elements;
      if (stage.has_embedding || stage.has_head)
        three = std::max(three, 2.0 * buckets_.layer.elements +
                                    (stage.has_head ? buckets_.head : buckets_.embedding).elements);
      in_cast = std::max(in_cast, three);
    }
    // A tied table is there once.
    if (c_.is_tied && has_ends) elements -= c_.elements.embedding;
    const double slice = elements / spread_.owners;
    const bool has_copies = spread_.owners > 1 || c_.compute_bytes != c_.master_bytes;
    double bytes = kAlignmentBytes + 3.0 * slice * c_.master_bytes + elements * c_.gradient_bytes +
                   c_.input_bytes;
    if (has_copies) bytes += elements * c_.compute_bytes;
    // Cast slices on their way into gathers.
    const double casts = spread_.owners > 1 ? in_cast / spread_.owners * c_.compute_bytes : 0.0;
    bytes += std::max(scratch, casts) + hop_bytes(r);
    if (!shape_.is_split) return bytes + held_bytes(r, shape_.in_flight, c_.saved);
    return bytes + held_bytes(r, shape_.forward_to_input, c_.saved) +
           held_bytes(r, shape_.in_flight, c_.weight_saved) +
           held_bytes(r, shape_.input_to_weight, c_.weight_handed);
  }

  // Slots of a rank's stages lie apart, or in one pool where that takes less.
  double held_bytes(size_t rank, const PipelineShape::Held& held, const StageSum& bytes) const {
    double apart = 0.0;
    double largest = 0.0;
    for (const int s : shape_.stages_of[rank]) {
      const double each = bytes(shape_.stages[static_cast<size_t>(s)]);
      apart += held.by_stage[static_cast<size_t>(s)] * each;
      largest = std::max(largest, each);
    }
    return std::min(apart, held.by_rank[rank] * largest);
  }

  // What is received lives until its backward. What is sent, gradients that are received and what
  // comes early take two slots of each kind, or share a few.
  double hop_bytes(size_t rank) const {
    constexpr int kSharedOfStage = 5;
    const int two = std::min(2, shape_.num_microbatches);
    int apart = 0;
    int received = 0;
    const auto stages = static_cast<int>(shape_.stages_of[rank].size());
    for (const int s : shape_.stages_of[rank]) {
      if (s > 0) {
        apart += two;
        received += shape_.in_flight.by_stage[static_cast<size_t>(s)];
      }
      if (s + 1 < static_cast<int>(shape_.stages.size())) apart += 2 * two;
    }
    if (received > 0) apart += two;
    received = std::min(received, shape_.in_flight.by_rank[rank]);
    return (received + std::min(apart, kSharedOfStage * stages + (shape_.is_split ? 3 : 1))) *
           c_.hop_bytes;
  }

  // What rounding to the arenas' alignment adds, of a few thousand pieces.
  static constexpr double kAlignmentBytes = 1024.0 * 1024.0;

  const StageCosts& c_;
  const PipelineShape& shape_;
  const DataSpread& spread_;
  double idle_s_;
  const Machine& machine_;
  Buckets buckets_;
  std::vector<StageTimes> times_;  // by stage
  std::vector<RankSums> sums_;     // by rank
  double first_s_ = 0.0;
};

PipelineDurations durations_of(const StageCosts& costs, const PipelineShape& shape, double hop_s) {
  PipelineDurations d{.transfer = hop_s};
  for (const StageModules& stage : shape.stages)
    d.stages.push_back({.forward = costs.forward_s(stage),
                        .backward_input = costs.backward_s(stage),
                        .backward_weight = costs.weight_s(stage)});
  return d;
}

double idle_of(const PipelineSchedule& schedule, const PipelineDurations& durations) {
  const Timeline t = simulate_schedule(schedule, durations);
  return t.makespan - *std::max_element(t.busy.begin(), t.busy.end());
}

}  // namespace

PipelineShape pipeline_shape(const std::string& name, int num_ranks,
                             std::vector<StageModules> stages, int num_microbatches) {
  const int p = num_ranks;
  const int stages_per_rank = static_cast<int>(stages.size()) / p;
  PipelineShape shape{.schedule = name,
                      .num_ranks = p,
                      .num_microbatches = num_microbatches,
                      .stages = std::move(stages)};
  const int longest = 2 * kRepeatsAfter * p + num_microbatches % p;
  const PipelineSchedule schedule =
      make_schedule(name, p, stages_per_rank,
                    is_plain_1f1b(name, stages_per_rank) ? 1 : std::min(num_microbatches, longest));
  shape.rank_of_stage = schedule.rank_of_stage;
  shape.stages_of.resize(static_cast<size_t>(p));
  for (int s = 0; s < std::ssize(shape.stages); ++s)
    shape.stages_of[static_cast<size_t>(shape.rank_of_stage[static_cast<size_t>(s)])].push_back(s);
  shape.is_split = schedule.splits_backward();
  if (is_plain_1f1b(name, stages_per_rank)) {
    for (int r = 0; r < p; ++r)
      shape.in_flight.by_rank.push_back(std::min(num_microbatches, p - r));
    shape.in_flight.by_stage = shape.in_flight.by_rank;
    return shape;
  }
  using enum PipelineOp;
  shape.in_flight = held_between(schedule, kForward, shape.is_split ? kBackwardWeight : kBackward);
  if (!shape.is_split) return shape;
  shape.forward_to_input = held_between(schedule, kForward, kBackwardInput);
  shape.input_to_weight = held_between(schedule, kBackwardInput, kBackwardWeight);
  shape.short_schedule =
      make_schedule(name, p, stages_per_rank, std::min(num_microbatches, kRepeatsAfter * p));
  return shape;
}

double split_idle_s(const StageCosts& costs, const PipelineShape& shape, double hop_s) {
  TOK_CHECK(shape.is_split, "{} has no idle time of its own", shape.schedule);
  const PipelineDurations durations = durations_of(costs, shape, hop_s);
  const double idle = idle_of(shape.short_schedule, durations);
  const int more = shape.num_microbatches - shape.short_schedule.num_microbatches;
  if (more <= 0) return idle;
  const int p = shape.num_ranks;
  const int stages_per_rank = static_cast<int>(shape.stages.size()) / p;
  const int fewer = (kRepeatsAfter - 1) * p;
  const double before =
      idle_of(make_schedule(shape.schedule, p, stages_per_rank, fewer), durations);
  return idle + std::max(0.0, idle - before) / p * more;
}

ClosedForm closed_form(const StageCosts& costs, const PipelineShape& shape,
                       const DataSpread& spread, double idle_s, const Machine& machine) {
  return Pipeline(costs, shape, spread, idle_s, machine).run();
}

ClosedForm closed_form(const FlatCosts& costs, int layers, int num_microbatches,
                       const Machine& machine) {
  const int m = num_microbatches;
  double seconds = machine.software.step_overhead_s + costs.once_s(layers);
  if (m == 1) {
    seconds += costs.only_s(layers);
  } else {
    seconds += costs.first_s(layers) + (m - 2) * costs.middle_s(layers) + costs.last_s(layers);
  }
  const double scratch = std::max(costs.scratch(layers), costs.unshard_scratch);
  return {.seconds = seconds, .bytes = costs.held(layers) + scratch};
}

}  // namespace tokamak::price
