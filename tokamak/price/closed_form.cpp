#include "tokamak/price/closed_form.h"

#include <algorithm>

#include "tokamak/price/task_time.h"

namespace tokamak::price {
namespace {

// Buckets of a kind that a rank holds, and what one of them costs at the ends of a step.
struct Bucket {
  double elements = 0.0;
  double gather_s = 0.0;  ///< 0 with one owner
  double reduce_s = 0.0;
  double update_s = 0.0;
};

Bucket bucket_of(double elements, double tp_reduce_s, const StageCosts& costs,
                 const DataSpread& spread, const Machine& machine) {
  if (elements <= 0.0) return {};
  const double launch_s = machine.device.launch_s;
  const double slice = elements / spread.owners;
  Bucket bucket{.elements = elements, .reduce_s = tp_reduce_s};
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
  Buckets(const StageCosts& c, const DataSpread& spread, const Machine& machine)
      : layer(bucket_of(c.elements.layer, c.tp_reduce_s.layer, c, spread, machine)),
        embedding(bucket_of(c.elements.embedding, c.tp_reduce_s.embedding, c, spread, machine)),
        head(bucket_of(c.elements.head, c.tp_reduce_s.head, c, spread, machine)) {}

  /// Of all that a stage holds, one after the other.
  double sum(const StageModules& stage, double Bucket::*seconds) const {
    return (stage.has_embedding ? embedding.*seconds : 0.0) + stage.layers * (layer.*seconds) +
           (stage.has_head ? head.*seconds : 0.0);
  }

  Bucket layer;
  Bucket embedding;
  Bucket head;
};

// Gathers of a rank, bucket by bucket.
double unshard_s(const PipelineShape& shape, int rank, const Buckets& b) {
  double seconds = 0.0;
  for (const int s : shape.stages_of[static_cast<size_t>(rank)])
    seconds += b.sum(shape.stages[static_cast<size_t>(s)], &Bucket::gather_s);
  return seconds;
}

// A stage's last backward with its reductions, which it hides in part: what comes after its seconds
// without them.
struct ReduceTail {
  double compute_s = 0.0;  ///< until its compute has ended, which reductions slow
  double reduce_s = 0.0;   ///< until both have ended
  double all_s = 0.0;      ///< of the reductions themselves
};

ReduceTail reduce_tail(const StageModules& stage, double compute_s, const Buckets& b,
                       const Machine& machine) {
  const double with_comm = machine.software.compute_slowdown;
  const double with_compute = machine.software.collective_slowdown;
  const int parts = stage.layers + (stage.has_head ? 1 : 0) + (stage.has_embedding ? 1 : 0);
  if (parts == 0) return {};
  // Each layer's share; what lies beside the other kind takes longer.
  const double part_s = compute_s / parts;
  const double beside_s = std::min(part_s * with_comm, b.layer.reduce_s * with_compute);
  const double slowed_s = part_s + beside_s * (1.0 - 1.0 / with_comm);
  double reduce_end = 0.0;
  double compute_end = 0.0;
  double all_s = 0.0;
  const auto add = [&](const Bucket& bucket) {
    compute_end += compute_end == 0.0 ? part_s : slowed_s;
    const double over = std::max(0.0, compute_end - reduce_end);
    const double start = reduce_end + over;
    const double beside = std::min(bucket.reduce_s * with_compute, slowed_s);
    reduce_end = start + bucket.reduce_s + beside * (1.0 - 1.0 / with_compute);
    all_s += bucket.reduce_s;
  };
  if (stage.has_head) add(b.head);
  for (int l = 0; l < stage.layers; ++l) add(b.layer);
  if (stage.has_embedding) add(b.embedding);
  return {.compute_s = compute_end - compute_s,
          .reduce_s = std::max(reduce_end, compute_end) - compute_s,
          .all_s = all_s};
}

// What rounding to the arenas' alignment adds, of a few thousand pieces.
constexpr double kAlignmentBytes = 1024.0 * 1024.0;

// All but the slots.
double rank_bytes(const StageCosts& c, const PipelineShape& shape, const DataSpread& spread,
                  int rank) {
  double elements = 0.0;
  double scratch = 0.0;
  bool has_start = false;
  bool has_ends = false;
  for (const int s : shape.stages_of[static_cast<size_t>(rank)]) {
    const StageModules& stage = shape.stages[static_cast<size_t>(s)];
    elements += c.elements(stage);
    scratch = std::max(scratch, c.scratch(stage));
    has_start = has_start || stage.has_embedding;
    has_ends = has_start && stage.has_head;
  }
  // A tied table is there once.
  if (c.is_tied && has_ends) elements -= c.elements.embedding;
  const double slice = elements / spread.owners;
  const bool has_copies = spread.owners > 1 || c.compute_bytes != c.master_bytes;
  double bytes =
      kAlignmentBytes + 3.0 * slice * c.master_bytes + elements * c.gradient_bytes + c.input_bytes;
  if (has_copies) bytes += elements * c.compute_bytes;
  return bytes + scratch;
}

class Pipeline {
 public:
  Pipeline(const StageCosts& costs, const PipelineShape& shape, const PipelineUse& use,
           const DataSpread& spread, const Machine& machine)
      : c_(costs),
        shape_(shape),
        use_(use),
        spread_(spread),
        machine_(machine),
        buckets_(costs, spread, machine) {}

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
    for (int r = 0; r < shape_.num_ranks; ++r) {
      update = std::max(update, update_s(r));
      const auto at = static_cast<size_t>(r);
      bytes = std::max(bytes, use_.slot_bytes[at] + rank_bytes(c_, shape_, spread_, r));
    }
    seconds += unshard_s(shape_, 0, buckets_) + update + spread_.norm_s + tie_s() +
               machine_.software.step_overhead_s;
    return {.seconds = seconds, .bytes = bytes};
  }

 private:
  void time_reductions() {
    tails_.reserve(shape_.stages.size());
    for (size_t s = 0; s < shape_.stages.size(); ++s) {
      const StageModules& stage = shape_.stages[s];
      const bool is_same = s > 0 && shape_.stages[s - 1] == stage;
      tails_.push_back(
          is_same ? tails_.back()
                  : reduce_tail(stage, shape_.is_split ? c_.weight_s(stage) : c_.backward_s(stage),
                                buckets_, machine_));
    }
  }

  // The end of the last reduction where the pipeline goes on beside them: those of a rank's stages
  // come one after the other, slower until its last backward has ended.
  double last_reduction_s() const {
    double last_s = 0.0;
    for (std::vector<int> stages : shape_.stages_of) {
      const auto end_of = [&](int s) { return use_.last_s[static_cast<size_t>(s)]; };
      std::sort(stages.begin(), stages.end(), [&](int a, int b) { return end_of(a) < end_of(b); });
      const double slowdown = machine_.software.collective_slowdown;
      const double computes_until = end_of(stages.back());
      double end_s = 0.0;
      for (const int s : stages) {
        const ReduceTail& tail = tails_[static_cast<size_t>(s)];
        const double beside_s =
            std::min(slowdown * tail.all_s, std::max(0.0, computes_until - end_s));
        const double queued_s = end_s + beside_s + tail.all_s - beside_s / slowdown;
        end_s = std::max(end_of(s) + tail.reduce_s, queued_s);
      }
      last_s = std::max(last_s, end_s);
    }
    return last_s;
  }

  // Gradients of a table that both ends of the pipeline hold.
  double tie_s() const {
    if (!c_.is_tied || shape_.rank_of_stage.front() == shape_.rank_of_stage.back()) return 0.0;
    const double bytes = c_.elements.embedding / spread_.owners * c_.gradient_bytes;
    return machine_.device.launch_s +
           collective_seconds(Collective::kAllReduce, bytes, spread_.ends, machine_);
  }

  double update_s(int rank) const {
    double seconds = 0.0;
    for (const int s : shape_.stages_of[static_cast<size_t>(rank)])
      seconds += buckets_.sum(shape_.stages[static_cast<size_t>(s)], &Bucket::update_s);
    return seconds;
  }

  const StageCosts& c_;
  const PipelineShape& shape_;
  const PipelineUse& use_;
  const DataSpread& spread_;
  const Machine& machine_;
  Buckets buckets_;
  std::vector<ReduceTail> tails_;  // by stage
};

}  // namespace

ClosedForm closed_form(const StageCosts& costs, const PipelineShape& shape, const PipelineUse& use,
                       const DataSpread& spread, const Machine& machine) {
  return Pipeline(costs, shape, use, spread, machine).run();
}

double least_flat_seconds(const StageCosts& costs, const StageModules& model, int num_microbatches,
                          const DataSpread& spread, const Machine& machine) {
  const Buckets buckets(costs, spread, machine);
  const double forward_s = costs.forward_s(model);
  const double backward_s = costs.backward_s(model);
  return (num_microbatches - 1) * (forward_s + backward_s) +
         std::max(forward_s, buckets.sum(model, &Bucket::gather_s)) +
         std::max(backward_s, buckets.sum(model, &Bucket::reduce_s));
}

double least_bytes(const StageCosts& costs, const PipelineShape& shape, const DataSpread& spread) {
  using enum PipelineItemKind;
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
        const double size = bytes(shape.stages[static_cast<size_t>(s)]);
        if (kind.from == kForward && kind.to == kBackwardWeight) throughout += size;
        if (kind.from == kForward && kind.to == kBackwardInput) before += size;
        if (kind.from == kBackwardInput && kind.to == kBackwardWeight) after += size;
      }
      const double held = throughout + (shape.is_split ? std::min(before, after) : before);
      least_held = is_first ? held : std::min(least_held, held);
      is_first = false;
    }
    most = std::max(most, rank_bytes(costs, shape, spread, r) +
                              shape.in_flight[static_cast<size_t>(r)] * least_held);
  }
  return most;
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
