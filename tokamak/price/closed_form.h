// Time and memory of a step in closed form, to prune a search: from what a layer, the embedding and
// the head cost one rank. No graph, no event loop; docs/pricing.md has the formulas.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tokamak/graph/schedule.h"
#include "tokamak/price/collective_time.h"

namespace tokamak::price {

/// What a pipeline stage holds.
struct StageModules {
  int layers = 0;
  bool has_embedding = false;
  bool has_head = false;  ///< with the last norm
};

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
  StageSum saved;            ///< bytes from forward to backward
  StageSum weight_saved;     ///< from forward to weight gradients
  StageSum weight_handed;    ///< from backward to weight gradients
  StageSum scratch;          ///< bytes while a segment runs
  StageSum elements;         ///< parameters of one tp rank, as buckets pad them
  StageSum tp_reduce_s;      ///< of gradients over tp, in the last microbatch
  double hop_bytes = 0.0;    ///< from a stage to the next
  double input_bytes = 0.0;  ///< tokens, labels, results
  bool is_split = false;
  bool is_tied = false;
  double master_bytes = 4.0;  ///< of an element
  double compute_bytes = 2.0;
  double gradient_bytes = 4.0;
  double update_s = 0.0;   ///< of norm and optimizer for an owned element
  int update_kernels = 2;  ///< of a bucket
};

/// A schedule and its stages: all that depends on neither model nor machine.
struct PipelineShape {
  std::string schedule;
  int num_ranks = 1;
  int num_microbatches = 1;
  std::vector<StageModules> stages;
  std::vector<int> rank_of_stage;
  std::vector<std::vector<int>> stages_of;  ///< by rank, in model order
  bool is_split = false;

  /// Chunks that are held at once, from the forward to the last backward; and where it splits, from
  /// the forward to the input gradients and from these to the weight gradients.
  struct Held {
    std::vector<int> by_rank;
    std::vector<int> by_stage;
  };

  Held in_flight;
  Held forward_to_input;
  Held input_to_weight;
  /// A split schedule for simulation, of at most so many microbatches that more only repeat.
  PipelineSchedule short_schedule;
};

/// REQUIRES: stages in model order, as many as `name` wants on so many ranks.
PipelineShape pipeline_shape(const std::string& name, int num_ranks,
                             std::vector<StageModules> stages, int num_microbatches);

/// How a mesh spreads parameters and messages.
struct DataSpread {
  int owners = 1;     ///< dp_shard x cp
  GroupLayout shard;  ///< the owners
  int replicas = 1;   ///< dp_replicate
  GroupLayout replica;
  double hop_s = 0.0;   ///< one message of hop_bytes
  double norm_s = 0.0;  ///< a number summed over all ranks
  GroupLayout ends;     ///< the first and the last rank of a pipeline
};

struct ClosedForm {
  double seconds = 0.0;
  double bytes = 0.0;
};

/// What an idle pipeline costs in a split schedule: seconds of a step beyond those of the busiest
/// rank's work. A short simulation: callers keep it by (costs, shape, hop_s).
double split_idle_s(const StageCosts& costs, const PipelineShape& shape, double hop_s);

/// A pipeline of more than one rank. `idle_s` is split_idle_s() where the schedule splits.
ClosedForm closed_form(const StageCosts& costs, const PipelineShape& shape,
                       const DataSpread& spread, double idle_s, const Machine& machine);

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
