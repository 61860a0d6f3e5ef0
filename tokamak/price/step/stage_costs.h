// What a layer, the embedding and the head cost one rank, and what no step of them is shorter or
// smaller than. No graph, no event loop.
#pragma once

#include <utility>
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

/// From which item of a stage to which its values are held; kBackwardInput stands for a backward
/// that is not split.
struct HeldKind {
  PipelineItemKind from = PipelineItemKind::kForward;
  PipelineItemKind to = PipelineItemKind::kBackward;

  auto operator<=>(const HeldKind&) const = default;
};

/// Seconds of one microbatch with nothing beside it.
struct PassSeconds {
  StageSum all;
  StageSum communication;    ///< of `all`, beside no kernel
  double held_factor = 1.0;  ///< on `all` beside a pipeline's message

  double operator()(const StageModules& stage) const { return all(stage); }
};

/// Of a stage whose ranks lie in one way in the fabric.
struct StageSeconds {
  PassSeconds forward;
  PassSeconds backward;  ///< of input gradients only, where backwards are split
  PassSeconds weight;    ///< 0 where they are not
  int link = 0;          ///< of the fabric, that collectives inside the stage take
};

/// What a stage costs: seconds, bytes, elements; independent of data parallelism, whose work stands
/// beside it.
struct StageCosts {
  /// Those that differ; the first of rank 0, which begins a domain of each level.
  std::vector<StageSeconds> places = std::vector<StageSeconds>(1);
  /// Into `places`, of stages whose first rank is 0, 1, 2, ... times `span`; then repeats itself.
  std::vector<int> place_of{0};
  int span = 1;                                     ///< tp x cp
  std::vector<std::pair<HeldKind, StageSum>> held;  ///< bytes
  StageSum scratch;                                 ///< bytes while a segment runs
  StageSum elements;           ///< parameters of one tp rank; a tied table with both ends
  double tied_elements = 0.0;  ///< of that table
  double hop_bytes = 0.0;      ///< from a stage to the next
  double input_bytes = 0.0;    ///< tokens, labels, results
  ElementBytes bytes;

  /// Into `places`, of the stage whose ranks begin there.
  int place(int first_rank) const {
    return place_of[static_cast<size_t>(first_rank / span) % place_of.size()];
  }
};

/// How a mesh spreads parameters and messages.
struct DataSpread {
  /// Groups of a rank.
  struct Groups {
    GroupLayout shard;    ///< the owners
    GroupLayout replica;  ///< the replicas

    bool operator==(const Groups&) const = default;
  };

  int owners = 1;              ///< dp_shard x cp
  int replicas = 1;            ///< dp_replicate
  std::vector<Groups> groups;  ///< those that differ; the first are the first stage's
  std::vector<int> groups_of;  ///< by pipeline rank; empty where all are alike
  std::vector<int> places;     ///< by pipeline rank, into StageCosts::places
  std::vector<double> hops_s;  ///< by pipeline rank: a message of hop_bytes to the next
  double norm_s = 0.0;         ///< a number summed over all ranks

  size_t groups_at(int rank) const { return groups_of.empty() ? 0 : groups_of[rank]; }
};

/// What the parameters of a layer, the embedding or the head cost beside a step's work.
struct BucketSeconds {
  double gather_s = 0.0;
  double scatter_s = 0.0;  ///< of gradients, to their owners
  double replica_s = 0.0;  ///< of slices, over the replicas
  double update_s = 0.0;
};

struct Buckets {
  BucketSeconds layer;
  BucketSeconds embedding;
  BucketSeconds head;
  int shard_link = 0;    ///< of the fabric
  int replica_link = 0;  ///< of the fabric

  double sum(const StageModules& stage, double BucketSeconds::*seconds) const {
    return stage.layers * layer.*seconds + (stage.has_embedding ? embedding.*seconds : 0.0) +
           (stage.has_head ? head.*seconds : 0.0);
  }
};

Buckets buckets_of(const StageCosts& costs, const DataSpread& spread,
                   const DataSpread::Groups& groups, const Machine& machine);

/// No step of a pipeline is shorter: the way to the busiest rank, its work and the way back.
/// Backwards may be split or whole.
double least_seconds(const StageCosts& costs, const PipelineShape& shape);

/// No step without a pipeline is shorter where weights and gradients are sliced: the first forward
/// waits for gathers, and reductions for the last one.
double least_flat_seconds(const StageCosts& costs, const StageModules& model, int num_microbatches,
                          const Buckets& buckets);

/// Bytes that each rank's items hold for later ones at once, at least. With costs of whole
/// backwards where the schedule does not split them. Needs no lists of items, and says less than
/// those.
std::vector<double> least_held_bytes(const StageCosts& costs, const PipelineShape& shape);

/// The same, from the lists. `costs` are of stages that split their backwards as the schedule does.
/// REQUIRES: add_items() was called.
std::vector<double> held_bytes(const StageCosts& costs, const PipelineShape& shape);

/// No rank that fits takes less. `held` is by rank.
double least_bytes(const StageCosts& costs, const PipelineShape& shape,
                   const std::vector<double>& held, int owners);

}  // namespace tokamak::price
