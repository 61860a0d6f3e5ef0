// From the global training graph to the graph of one rank (docs/parallelism.md).
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokamak/graph/graph.h"
#include "tokamak/graph/mesh.h"
#include "tokamak/ops/optimizer/stochastic_rounding.h"
#include "tokamak/parallel/decide.h"
#include "tokamak/parallel/low_precision.h"
#include "tokamak/parallel/tensor_piece.h"
#include "tokamak/pipeline/schedule.h"

namespace tokamak {

/// When compute copies of weights are dropped after the forward and gathered again. kDefault means
/// always, except under pipeline parallelism, and except for norm and head, which the backward
/// needs at once.
enum class Reshard : uint8_t { kDefault, kAlways, kNever };

/// kZero1 and kZero2 gather weights once a step; kZero2 reduces gradients in every microbatch.
enum class Sharding : uint8_t { kDdp, kZero1, kZero2, kFsdp };

/// Where gradients of several microbatches are summed: in full and reduced once a step, or in the
/// owner's slice and reduced in every microbatch. kAuto sums in slices if there is one microbatch.
enum class GradStore : uint8_t { kAuto, kFull, kSharded };

struct DistributeOptions {
  Mesh mesh;
  int rank = 0;
  int64_t num_microbatches = 1;
  Sharding sharding = Sharding::kFsdp;
  Reshard reshard = Reshard::kDefault;
  GradStore grad_store = GradStore::kAuto;
  ModelAxes model;
  bool loss_parallel = true;
  /// Does not keep what the forward of a block gathers over tp: the backward gathers it again,
  /// concurrently with its matmuls (Korthikanti et al., arXiv 2205.05198, section 4.2.2).
  bool gather_again = false;
  /// Whether the pipeline rank that holds the last stage gathers again, too. It has the most to
  /// compute and, but for schedules with a V, the fewest microbatches in flight.
  bool gather_again_with_head = true;
  /// The backward gathers and sums over tp on a stream of its own, for weight gradients to cover
  /// (cover_collectives.h), unless weight gradients are apart.
  bool covers_collectives = false;
  /// The forwards of a pipeline gather and sum over tp on these streams, too, during weight
  /// gradients that the backward before them leaves (CompileOptions::joins_forwards). Only with
  /// covers_collectives.
  bool covers_forwards = false;
  /// The gathers and sums of context parallelism overlap matmuls (gather_early.h,
  /// cover_collectives.h), and attention reads slices of one sample in place.
  bool covers_context = false;
  ContextMethod context = ContextMethod::kAllGather;
  bool head_and_tail = true;         ///< context parallel ranks hold chunks r and 2n-1-r
  std::vector<int> stage_of_module;  ///< by Label::module; empty = one stage
  PipelineSchedule pipeline;         ///< which rank runs which stage, and when
  int receives_ahead = 1;            ///< of the schedule's items (lower_schedule)
  bool overlaps_gathers = false;     ///< once a step, stage by stage during the first forwards
  bool merge_matmuls = true;         ///< merge matmuls of one input (merge_matmuls.h)
  bool sequence_parallel = true;     ///< ranks of tp cut the sequence between blocks
  bool keep_copies = true;  ///< of weights gathered at most once a step: updates write them
  LowPrecision low_precision;
};

/// Ends the name of the State that holds this rank's terms of a result, where other ranks have
/// terms.
inline constexpr std::string_view kOwnTerms = ".part";

/// Whether a rank sums gradients of all weights that it computes with, not only of its slices.
bool keeps_full_gradients(const DistributeOptions& o);

/// A part of a flat slice that belongs to one tensor.
struct TensorRange {
  std::string tensor;
  int64_t begin = 0;  ///< in the slice
  int64_t end = 0;
  double norm_weight = 1.0;  ///< 1 / number of ranks that hold and count the same elements
  ElementPlaces places;      ///< in the whole tensor
};

/// Parameters that one optimizer node updates: a bucket's slice, or one whole parameter.
struct UpdateUnit {
  int32_t block = -1;
  StateId master;
  std::vector<StateId> moments;  ///< in the order of kMomentNames
  StateId copy;  ///< in the compute dtype, written by the update; invalid where there is none
  Value gradient;
  std::vector<TensorRange> tensors;
};

struct RankContext;
class Buckets;

/// Returns what `state` holds after every write issued before.
Value read_final(Graph& graph, StateId state);

/// Localizes the graphs of one rank: first the training graph, which decides how parameters lie in
/// memory, then others over the same parameters.
class Distributor {
 public:
  /// `local` is an empty State table that must outlive the graphs.
  Distributor(StateTable& local, const DistributeOptions& options);
  ~Distributor();
  Distributor(const Distributor&) = delete;
  Distributor& operator=(const Distributor&) = delete;

  /// `global` is forward and, for training, backward, gradients accumulated into State of kind
  /// kGradient named "grad.NAME". Inputs and results keep their names; results are totals over all
  /// ranks. Throws Error where the mesh leaves a rank without a head, a row or a token.
  Graph localize(const Graph& global);

  /// Does the same with the result of decide_placements() for `global`.
  Graph localize(const Graph& global, const std::vector<NodePlacement>& placements);

  /// Returns what the optimizer updates on this rank. `graph` is the training graph.
  std::vector<UpdateUnit> units(Graph& graph) const;

  /// Returns the group over which squares of gradients are summed.
  CommGroup norm_group() const;

  /// Returns the ranks that hold copies of the same sum of squares; one rank if none is summed.
  CommGroup norm_copies_group() const;

  /// Returns the ranks among which weights in low precision are spread, or one rank each without
  /// low precision.
  WeightGroups weight_groups() const;

  std::vector<TensorPiece> pieces() const;

  const GroupTable& groups() const { return groups_; }

  /// This rank's terms of a result, and the result's State in the global graph.
  struct PartialResult {
    StateId part;
    StateId total;
  };

  /// Says for people what was decided about the training graph.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  void sum_results(Graph& g, const Graph& global, const std::vector<PartialResult>& partial);

  StateTable& local_;
  DistributeOptions options_;
  GroupTable groups_;
  std::unique_ptr<RankContext> context_;
  std::unique_ptr<Buckets> buckets_;
  std::vector<std::string> notes_;
};

/// AdamW's moments: the means of gradients and of their squares.
inline constexpr std::array<std::string_view, 2> kMomentNames{"m", "v"};

/// Returns the name of a parameter's moment: "optimizer.m.NAME".
std::string moment_name(std::string_view moment, std::string_view parameter);

}  // namespace tokamak
