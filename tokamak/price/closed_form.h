// Time and memory of a step in closed form, to prune a search: from what a layer, the embedding and
// the head cost one rank. No graph, no event loop; docs/pricing.md has the formulas.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "tokamak/price/collective_time.h"
#include "tokamak/price/pipeline_shape.h"

namespace tokamak::price {

/// A quantity of a stage as a sum over its modules.
struct StageSum {
  double base = 0.0;
  double layer = 0.0;
  double embedding = 0.0;
  double head = 0.0;

  double operator()(const StageModules& stage) const {
    return base + layer * stage.layers + (stage.has_embedding ? embedding : 0.0) +
           (stage.has_head ? head : 0.0);
  }
};

/// One microbatch in a stage of a pipeline. Seconds, bytes, elements; independent of data
/// parallelism, whose work stands at the ends of a step.
struct StageCosts {
  StageSum forward_s;
  StageSum backward_s;        ///< of input gradients only where the schedule splits
  StageSum first_backward_s;  ///< of the first microbatch, which overwrites gradients
  StageSum weight_s;          ///< 0 where it does not split
  StageSum first_weight_s;
  std::vector<std::pair<HeldKind, StageSum>> held;  ///< bytes
  /// Indices into `held` in the order in which a stage makes them: with embedding, inner, with
  /// head.
  std::array<std::vector<int>, 3> held_order;
  StageSum scratch;               ///< bytes while a segment runs
  StageSum elements;              ///< parameters of one tp rank, as buckets pad them
  StageSum tp_reduce_s;           ///< of gradients over tp, in the last microbatch
  double hop_bytes = 0.0;         ///< from a stage to the next
  double input_bytes = 0.0;       ///< tokens, labels, results
  double message_slowdown = 1.0;  ///< times as long as alone, what runs beside a message
  bool is_split = false;
  bool is_tied = false;
  double master_bytes = 4.0;  ///< of an element
  double compute_bytes = 2.0;
  double gradient_bytes = 4.0;
  double update_s = 0.0;   ///< of norm and optimizer for an owned element
  int update_kernels = 2;  ///< of a bucket
};

/// How a mesh spreads parameters and messages.
struct DataSpread {
  int owners = 1;     ///< dp_shard x cp
  GroupLayout shard;  ///< the owners
  int replicas = 1;   ///< dp_replicate
  GroupLayout replica;
  double hop_s = 0.0;   ///< the shortest message of hop_bytes
  double norm_s = 0.0;  ///< a number summed over all ranks
  GroupLayout ends;     ///< the first and the last rank of a pipeline
};

struct ClosedForm {
  double seconds = 0.0;
  double bytes = 0.0;
};

/// What a schedule makes of the costs, on any data-parallel mesh.
struct PipelineUse {
  /// A way through the step that takes `seconds` and the reductions of these stages.
  struct Path {
    double seconds = 0.0;
    std::vector<int> reductions;
  };

  std::vector<Path> paths;         ///< the longest, for short and for long reductions
  std::vector<double> last_s;      ///< by stage: the end of its last backward, without reductions
  std::vector<double> slot_bytes;  ///< by rank: of what is held for later items
};

/// A few passes over the schedule, and the slots of each rank: callers keep it by (costs, shape,
/// hops). `hops_s`: seconds of a message from each rank to the next, and to the one before.
/// REQUIRES: add_schedule() was called.
PipelineUse pipeline_use(const StageCosts& costs, const PipelineShape& shape,
                         std::span<const double> hops_s);

/// No step is shorter: the way to the busiest rank, its work, and the way back. Needs no schedule.
double least_seconds(const StageCosts& costs, const PipelineShape& shape, double hop_s);

/// No step without a pipeline is shorter where weights and gradients are sliced: the first forward
/// waits for gathers, and reductions for the last one.
double least_flat_seconds(const StageCosts& costs, const StageModules& model, int num_microbatches,
                          const DataSpread& spread, const Machine& machine);

/// No rank that fits takes less.
double least_bytes(const StageCosts& costs, const PipelineShape& shape, const DataSpread& spread);

/// A pipeline of more than one rank.
ClosedForm closed_form(const StageCosts& costs, const PipelineShape& shape, const PipelineUse& use,
                       const DataSpread& spread, const Machine& machine);

/// A line in the number of layers.
struct LayerLine {
  double base = 0.0;
  double layer = 0.0;

  double operator()(int layers) const { return base + layer * layers; }
};

/// One stage on every rank, on one mesh: nothing but lines.
struct FlatCosts {
  LayerLine held;     ///< bytes all the time
  LayerLine scratch;  ///< bytes in a microbatch
  double unshard_scratch = 0.0;
  LayerLine once_s;  ///< before and after the microbatches
  LayerLine only_s;  ///< the microbatch, where there is one
  LayerLine first_s;
  LayerLine middle_s;
  LayerLine last_s;
};

ClosedForm closed_form(const FlatCosts& costs, int layers, int num_microbatches,
                       const Machine& machine);

}  // namespace tokamak::price
