#include "tokamak/price/step/stage_costs.h"

#include <algorithm>
#include <limits>
#include <map>

namespace tokamak::price {
namespace {

BucketSeconds bucket_seconds(double elements, double gathered_bytes, const StageCosts& costs,
                             const DataSpread& spread, const DataSpread::Groups& groups,
                             const Machine& machine) {
  BucketSeconds bucket;
  if (elements <= 0.0) return bucket;
  const auto sum = [&](Collective kind, double count, const GroupLayout& group) {
    return communication_seconds({.kind = kind,
                                  .bytes = count * costs.bytes.gradient,
                                  .sums_gradients = costs.bytes.gradient == sizeof(float)},
                                 group, machine);
  };
  const double slice = elements / spread.owners;
  if (spread.owners > 1) {
    bucket.gather_s =
        communication_seconds({.kind = Collective::kAllGather, .bytes = elements * gathered_bytes},
                              groups.shard, machine);
    bucket.scatter_s = sum(Collective::kReduceScatter, elements, groups.shard);
  }
  if (spread.replicas > 1) bucket.replica_s = sum(Collective::kAllReduce, slice, groups.replica);
  // Masters and moments are read and written, gradients read by the norm and by the optimizer.
  const Device& device = machine.device;
  const double copy = costs.bytes.has_codes ? 0.0 : costs.bytes.compute;
  const double bytes = 6.0 * costs.bytes.master + 2.0 * costs.bytes.gradient + copy;
  bucket.update_s = slice * bytes / (device.memory_bytes_per_s * device.memory_efficiency);
  return bucket;
}

double held_bytes(const HeldKind& kind, const StageSum& size, const StageModules& stage) {
  // A layer keeps what it reads from the embedding before it; the embedding keeps nothing, because
  // it reads tokens.
  const bool is_embedding_alone = stage.layers == 0 && stage.has_embedding && !stage.has_head;
  const bool is_kept =
      kind.from == PipelineItemKind::kForward && kind.to != PipelineItemKind::kSendForward;
  return is_embedding_alone && is_kept ? 0.0 : size(stage);
}

// Returns the bytes of a rank without those that are held for later items.
double rank_bytes(const StageCosts& c, const PipelineShape& shape, int owners, int rank) {
  const auto at = static_cast<size_t>(rank);
  const StageModules& all = shape.modules_of[at];
  double elements = c.elements(all);
  // A tied table counts once.
  if (all.has_embedding && all.has_head) elements -= c.tied_elements;
  double scratch = 0.0;
  for (const int s : shape.stages_of[at]) scratch = std::max(scratch, c.scratch(shape.stages[s]));
  return state_bytes(elements, c.bytes, {.owners = owners}) + c.input_bytes + scratch;
}

// Follows what the items of a rank hold for later ones, item by item.
class HeldByItems {
 public:
  HeldByItems(const StageCosts& costs, const PipelineShape& shape, int rank) {
    for (const int s : shape.stages_of[rank]) {
      for (const auto& [kind, size] : costs.held) {
        if (!has_item(kind.from, s, rank, shape) || !has_item(kind.to, s, rank, shape)) continue;
        const double bytes = held_bytes(kind, size, shape.stages[s]);
        begins_[{kind.from, s}] += bytes;
        ends_[{kind.to, s}] += bytes;
      }
    }
  }

  void run(const PipelineItem& item) {
    using enum PipelineItemKind;
    const PipelinePoint point{item.kind == kBackward ? kBackwardInput : item.kind, item.stage};
    now_ += begins_[point];
    most_ = std::max(most_, now_);
    now_ -= ends_[point];
  }

  double most() const { return most_; }

 private:
  // Two stages of one rank need no message between them.
  static bool has_item(PipelineItemKind kind, int stage, int rank, const PipelineShape& shape) {
    using enum PipelineItemKind;
    const auto is_elsewhere = [&](int other) {
      return other >= 0 && other < std::ssize(shape.stages) && shape.rank_of_stage[other] != rank;
    };
    if (kind == kRecvForward || kind == kSendBackward) return is_elsewhere(stage - 1);
    if (kind == kSendForward || kind == kRecvBackward) return is_elsewhere(stage + 1);
    return kind != kBackwardWeight || shape.is_split;
  }

  std::map<PipelinePoint, double> begins_;
  std::map<PipelinePoint, double> ends_;
  double now_ = 0.0;
  double most_ = 0.0;
};

}  // namespace

Buckets buckets_of(const StageCosts& costs, const DataSpread& spread,
                   const DataSpread::Groups& groups, const Machine& machine) {
  const auto bucket = [&](double elements, double gathered_bytes) {
    return bucket_seconds(elements, gathered_bytes, costs, spread, groups, machine);
  };
  return {.layer = bucket(costs.elements.layer, costs.bytes.gathered),
          .embedding = bucket(costs.elements.embedding, costs.bytes.compute),
          .head = bucket(costs.elements.head, costs.bytes.compute),
          .shard_link = link_of(groups.shard),
          .replica_link = link_of(groups.replica)};
}

double least_seconds(const StageCosts& costs, const PipelineShape& shape) {
  const StageSeconds& seconds = costs.places.front();        // no other is faster
  std::vector<double> before(shape.stages.size() + 1, 0.0);  // of the first microbatch
  std::vector<double> after(shape.stages.size() + 1, 0.0);   // of the last
  for (size_t s = 0; s < shape.stages.size(); ++s) {
    before[s + 1] = before[s] + seconds.forward(shape.stages[s]);
    after[s + 1] = after[s] + seconds.backward(shape.stages[s]);
  }
  double least = 0.0;
  for (const std::vector<int>& stages : shape.stages_of) {
    double work = 0.0;
    for (const int s : stages) {
      const StageModules& stage = shape.stages[s];
      work += seconds.forward(stage) + seconds.backward(stage) + seconds.weight(stage);
    }
    const auto begin = static_cast<size_t>(stages.front());
    // Only weight gradients may be left when the last microbatch passes.
    const double back = shape.is_split ? 0.0 : after[begin];
    least = std::max(least, before[begin] + shape.num_microbatches * work + back);
  }
  return least;
}

double least_flat_seconds(const StageCosts& costs, const StageModules& model, int num_microbatches,
                          const Buckets& buckets) {
  const double forward_s = costs.places.front().forward(model);
  const double backward_s = costs.places.front().backward(model);
  const double reduce_s =
      buckets.sum(model, &BucketSeconds::scatter_s) + buckets.sum(model, &BucketSeconds::replica_s);
  return (num_microbatches - 1) * (forward_s + backward_s) +
         std::max(forward_s, buckets.sum(model, &BucketSeconds::gather_s)) +
         std::max(backward_s, reduce_s);
}

double state_bytes(double elements, const ElementBytes& bytes, const Slices& slices) {
  const double slice = elements / slices.owners;
  const bool has_copies = !slices.of_copies && (slices.owners > 1 || bytes.kept() != bytes.master);
  return slice * 3.0 * bytes.master + (slices.of_gradients ? slice : elements) * bytes.gradient +
         (has_copies ? elements * bytes.kept() : 0.0);
}

double saved_bytes(const StageCosts& costs, const StageModules& stage) {
  using enum PipelineItemKind;
  double bytes = 0.0;
  for (const auto& [kind, size] : costs.held) {
    if (kind.from == kForward && kind.to == kBackwardInput) bytes += held_bytes(kind, size, stage);
  }
  return bytes;
}

std::vector<double> least_held_bytes(const StageCosts& costs, const PipelineShape& shape) {
  std::vector<double> held;
  for (int r = 0; r < shape.num_ranks; ++r) {
    double least = std::numeric_limits<double>::infinity();  // of a microbatch in flight
    for (const int s : shape.stages_of[r])
      least = std::min(least, saved_bytes(costs, shape.stages[s]));
    held.push_back(shape.in_flight[r] * least);
  }
  return held;
}

std::vector<double> held_bytes(const StageCosts& costs, const PipelineShape& shape) {
  std::vector<double> held;
  for (int r = 0; r < shape.num_ranks; ++r) {
    HeldByItems by_items(costs, shape, r);
    for (const PipelineItem& item : shape.items.of_rank[r]) by_items.run(item);
    held.push_back(by_items.most());
  }
  return held;
}

double least_bytes(const StageCosts& costs, const PipelineShape& shape,
                   const std::vector<double>& held, int owners) {
  double most = 0.0;
  for (int r = 0; r < shape.num_ranks; ++r)
    most = std::max(most, held[r] + rank_bytes(costs, shape, owners, r));
  return most;
}

}  // namespace tokamak::price
