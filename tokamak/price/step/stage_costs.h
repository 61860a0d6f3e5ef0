// What a layer, the embedding and the head cost one rank, and lower bounds of a step's time and
// memory. These need no graph and no event loop.
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

/// Bytes of one element of a parameter in memory.
struct ElementBytes {
  double master = 4.0;  ///< and each of its two moments
  double compute = 2.0;
  double gradient = 4.0;
  double gathered = 2.0;   ///< while weights of blocks travel
  bool has_codes = false;  ///< weights of blocks are kept as 8-bit codes

  /// Returns the least bytes that are kept for matmuls while a step lasts.
  double kept() const { return has_codes ? 1.0 : compute; }
};

/// How a rank's parameters are sliced over their owners.
struct Slices {
  int owners = 1;
  bool of_gradients = false;
  bool of_copies = false;  ///< compute copies too: weights are gathered whenever they are used
};

/// Returns the bytes of masters, moments, gradients and compute copies of N parameters.
double state_bytes(double elements, const ElementBytes& bytes, const Slices& slices);

/// The items of a stage from and up to which its values are held; kBackwardInput stands for a
/// backward that is not split.
struct HeldKind {
  PipelineItemKind from = PipelineItemKind::kForward;
  PipelineItemKind to = PipelineItemKind::kBackward;

  auto operator<=>(const HeldKind&) const = default;
};

/// Seconds of one microbatch with nothing beside it.
struct PassSeconds {
  StageSum all;
  StageSum first;            ///< `all` of a step's first microbatch, which casts weights
  StageSum communication;    ///< of `all`, beside no kernel
  double held_factor = 1.0;  ///< on `all` beside a pipeline's message

  double operator()(const StageModules& stage) const { return all(stage); }

  const StageSum& of(bool is_first) const { return is_first ? first : all; }
};

/// Seconds of a stage for one position of its ranks in the fabric.
struct StageSeconds {
  PassSeconds forward;
  PassSeconds backward;         ///< of input gradients only, where backwards are split
  PassSeconds weight;           ///< 0 if they are not split
  StageSum encode;              ///< of codes of whole weights, once a step
  bool encodes_slices = false;  ///< owners encode their slices and gather codes
  int link = 0;                 ///< level of the fabric that collectives inside the stage take
};

/// The cost of a stage in seconds, bytes and elements, without the work of data parallelism.
struct StageCosts {
  /// Positions in the fabric that differ; the first is that of rank 0, which begins a domain of
  /// each level.
  std::vector<StageSeconds> places = std::vector<StageSeconds>(1);
  /// Indices into `places` of stages whose first rank is 0, 1, 2, ... times `span`; then they
  /// repeat.
  std::vector<int> place_of{0};
  int span = 1;                                     ///< tp x cp
  std::vector<std::pair<HeldKind, StageSum>> held;  ///< bytes
  StageSum scratch;                                 ///< bytes while a segment runs
  StageSum elements;           ///< parameters of one tp rank; a tied table with both ends
  double tied_elements = 0.0;  ///< of that table
  double hop_bytes = 0.0;      ///< from a stage to the next
  double input_bytes = 0.0;    ///< tokens, labels, results
  ElementBytes bytes;

  /// Returns the index into `places` of the stage whose ranks begin at `first_rank`.
  int place(int first_rank) const {
    return place_of[static_cast<size_t>(first_rank / span) % place_of.size()];
  }
};

/// How a mesh spreads parameters and messages.
struct DataSpread {
  /// The groups of one rank.
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
  double tie_s = 0.0;          ///< a tied table's gradients, summed over the first and last stage
  double norm_s = 0.0;         ///< a number summed over all ranks

  size_t groups_at(int rank) const { return groups_of.empty() ? 0 : groups_of[rank]; }
};

/// The seconds of gathers and reductions of a layer, the embedding or the head in a step.
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

/// Returns a lower bound of a pipeline's step: the path to the busiest rank, its work and the path
/// back. Backwards may be split or whole.
double least_seconds(const StageCosts& costs, const PipelineShape& shape);

/// Returns a lower bound of a step without a pipeline if weights and gradients are sliced: the
/// first forward waits for gathers, and reductions wait for the last backward.
double least_flat_seconds(const StageCosts& costs, const StageModules& model, int num_microbatches,
                          const Buckets& buckets);

/// Returns the bytes that a stage's forward saves for its backward, for one microbatch.
double saved_bytes(const StageCosts& costs, const StageModules& stage);

/// Returns a lower bound of the bytes that each rank's items hold for later ones at once. `costs`
/// have whole backwards if the schedule does not split them. It needs no lists of items, and bounds
/// less tightly than held_bytes().
std::vector<double> least_held_bytes(const StageCosts& costs, const PipelineShape& shape);

/// Returns these bytes from the lists. `costs` are of stages that split their backwards as the
/// schedule does. REQUIRES: add_items() was called.
std::vector<double> held_bytes(const StageCosts& costs, const PipelineShape& shape);

/// Returns a lower bound of the fullest rank's bytes. `held` is by rank.
double least_bytes(const StageCosts& costs, const PipelineShape& shape,
                   const std::vector<double>& held, int owners);

}  // namespace tokamak::price
