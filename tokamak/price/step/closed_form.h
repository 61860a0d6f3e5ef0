// Time and memory of a step in closed form, to prune a search: from what a layer, the embedding and
// the head cost one rank. No graph, no event loop; docs/pricing.md has the formulas.
#pragma once

#include <array>
#include <vector>

#include "tokamak/price/step/pipeline_shape.h"
#include "tokamak/price/task/collective_time.h"

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

/// Seconds of a stage's work, alone and with a pipeline's message beside all of it.
struct WorkSeconds {
  StageSum alone;
  StageSum beside_message;
  StageSum communication;  ///< of `alone`, beside no kernel

  double operator()(const StageModules& stage) const { return alone(stage); }
};

/// Kernels and then collectives beside none of them, as shares of what a layer has of each.
struct Stretch {
  double kernels = 0.0;
  double communication = 0.0;
};

/// One microbatch in a stage of a pipeline, at one clock.
struct StageSeconds {
  WorkSeconds forward;
  WorkSeconds backward;        ///< of input gradients only where the schedule splits
  WorkSeconds first_backward;  ///< of the first microbatch, which overwrites gradients
  WorkSeconds weight;          ///< 0 where it does not split
  WorkSeconds first_weight;
  StageSum tp_reduce;  ///< of gradients over tp, in the last microbatch
  /// Of a layer's work that makes gradients of weights; empty = all kernels come first.
  std::vector<Stretch> stretches;
};

/// The same by where the groups of the stage's ranks lie in the fabric.
struct StagePlace {
  StageSeconds fast;  ///< at StageCosts::fast_clock
  StageSeconds slow;  ///< at StageCosts::slow_clock
};

/// What power limits, as PowerUse: one microbatch at the highest clocks.
struct StagePower {
  StageSum products_s;
  StageSum attention_s;
  StageSum memory_s;
  StageSum collective_s;
  StageSum drawn_s;
};

/// Of an element of a parameter, in memory.
struct ElementBytes {
  double master = 4.0;  ///< and each of its two moments
  double compute = 2.0;
  double gradient = 4.0;
};

/// What of its parameters a rank keeps in slices.
struct Slices {
  int owners = 1;
  bool of_gradients = false;
  bool of_copies = false;  ///< for compute: weights are gathered whenever they are used
};

/// Bytes of so many parameters' masters, moments, gradients and copies for compute.
double state_bytes(double elements, const ElementBytes& bytes, const Slices& slices);

/// What a stage of a pipeline costs: seconds, bytes, elements; independent of data parallelism,
/// whose work stands at the ends of a step.
struct StageCosts {
  /// Those that differ; the first of rank 0, which begins a domain of each level.
  std::vector<StagePlace> places = std::vector<StagePlace>(1);
  /// Into `places`, of stages whose first rank is 0, 1, 2, ... times `span`; then repeats itself.
  std::vector<int> place_of{0};
  int span = 1;             ///< tp x cp
  StagePower power;         ///< 0 where clocks do not depend on it
  double fast_clock = 1.0;  ///< of a rank with all of the model, one microbatch and its update
  double slow_clock = 1.0;  ///< at most that of layers alone
  std::vector<std::pair<HeldKind, StageSum>> held;  ///< bytes
  /// Indices into `held` in the order in which a stage makes them: with embedding, inner, with
  /// head.
  std::array<std::vector<int>, 3> held_order;
  StageSum scratch;            ///< bytes while a segment runs
  StageSum elements;           ///< parameters of one tp rank; a tied table with both ends
  double tied_elements = 0.0;  ///< of that table, which has a bucket of its own
  double slice_unit = 1.0;     ///< buckets are padded to a multiple of it for each owner
  double hop_bytes = 0.0;      ///< from a stage to the next
  double input_bytes = 0.0;    ///< tokens, labels, results
  bool is_split = false;
  ElementBytes bytes;
  double update_s = 0.0;   ///< of norm and optimizer for an owned element
  int update_kernels = 2;  ///< of a bucket

  /// Of the stage whose ranks begin there.
  int place(int first_rank) const {
    return place_of[static_cast<size_t>(first_rank / span) % place_of.size()];
  }
};

/// Bytes of this kind, `size` by modules, that a stage holds for a microbatch.
double held_bytes(const HeldKind& kind, const StageSum& size, const StageModules& stage);

/// A pipeline's ranks in the fabric.
struct PipelineRanks {
  std::vector<double> hops_s;  ///< of a message from each to the next, and to the one before
  std::vector<int> places;     ///< into StageCosts::places
};

/// How a mesh spreads parameters and messages.
struct DataSpread {
  /// Groups of a pipeline's rank.
  struct Groups {
    int place = 0;        ///< into StageCosts::places
    GroupLayout shard;    ///< the owners
    GroupLayout replica;  ///< the replicas

    bool operator==(const Groups&) const = default;
  };

  int owners = 1;              ///< dp_shard x cp
  int replicas = 1;            ///< dp_replicate
  std::vector<Groups> groups;  ///< those that differ; the first are rank 0's
  std::vector<int> groups_of;  ///< by pipeline rank; empty where all are alike
  double hop_s = 0.0;          ///< the shortest message of hop_bytes
  double norm_s = 0.0;         ///< a number summed over all ranks
  GroupLayout ends;            ///< the first and the last rank of a pipeline
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

  /// A stage's forward of the first microbatch, for which the others wait.
  struct First {
    double begin_s = 0.0;
    double slack_s = 0.0;  ///< between what the stage before sends and its beginning
    double kernels_s = 0.0;
    double communication_s = 0.0;  ///< beside no kernel
  };

  /// A stage's last backward (of weights, where it is split), without the reductions that follow.
  struct Last {
    double end_s = 0.0;
    int after = -1;                 ///< the stage whose last backward it waits for, or -1
    double kernels_s = 0.0;         ///< with what messages add
    double communication_s = 0.0;   ///< beside no kernel
    double message_share = 0.0;     ///< of its time that has a message beside it
    double message_slowdown = 1.0;  ///< of its kernels there

    bool takes_as_long_as(const Last& other) const {
      return kernels_s == other.kernels_s && communication_s == other.communication_s &&
             message_share == other.message_share && message_slowdown == other.message_slowdown;
    }
  };

  std::vector<Path> paths;          ///< the longest, for short and for long reductions
  std::vector<First> firsts;        ///< by stage
  std::vector<Last> lasts;          ///< by stage
  std::vector<int> order_of_lasts;  ///< stages, as these end
  std::vector<double> slot_bytes;   ///< by rank: of what is held for later items
  double cooler_s = 0.0;            ///< less where each rank updates all that it holds
};

/// A few passes over the schedule, and the slots of each rank: callers keep it by (costs, shape,
/// ranks). REQUIRES: add_schedule() was called.
PipelineUse pipeline_use(const StageCosts& costs, const PipelineShape& shape,
                         const PipelineRanks& ranks, const Machine& machine);

/// No step is shorter: the way to the busiest rank, its work, and the way back. Needs no schedule.
double least_seconds(const StageCosts& costs, const PipelineShape& shape, double hop_s);

/// The same of a schedule, but for rounding: its works with nothing beside them, at the highest
/// clocks. REQUIRES: add_schedule() was called.
double least_seconds(const StageCosts& costs, const PipelineShape& shape,
                     const PipelineRanks& ranks, const Machine& machine);

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

/// One stage on every rank, on one mesh and for one number of microbatches: nothing but lines.
struct FlatCosts {
  LayerLine held;     ///< bytes all the time
  LayerLine scratch;  ///< bytes in a microbatch
  double unshard_scratch = 0.0;
  LayerLine step_s;
};

ClosedForm closed_form(const FlatCosts& costs, int layers);

}  // namespace tokamak::price
