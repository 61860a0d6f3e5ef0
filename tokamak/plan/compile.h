// Graph to plan: the passes after differentiation, as one readable list of calls.
#pragma once

#include <functional>
#include <string>

#include "tokamak/graph/passes.h"
#include "tokamak/pipeline/schedule.h"
#include "tokamak/plan/plan.h"

namespace tokamak {

struct CompileOptions {
  RecomputePolicy recompute;
  bool fuse = true;  ///< sums and neighbours (fuse.h)
  /// Maxima and codes with what they are of; codes of tiles only where the peak does not rise, or
  /// not above the goal (fused_float8.h).
  bool fuse_float8 = true;
  /// The peak in bytes above which codes are made in a slower way if that needs less memory; 0 =
  /// any peak will do.
  int64_t peak_goal = 0;
  /// Where no other plan keeps to the goal, weights are gathered late, buffers are packed in other
  /// orders, blocks are recomputed beyond `recompute`, and codes of the head are made again.
  bool trades_time = false;
  Target target;
  bool split_backward =
      false;  ///< forward and backward as two segments, as pipeline stages need them
  /// What this rank runs of a pipeline, in order; empty = no pipeline. With a pipeline each stage
  /// has its own segments, and the plan has items.
  std::vector<PipelineItem> pipeline;
  /// With a pipeline, what runs once before the microbatches has a segment for each stage, and its
  /// gathers may outlive it (outliving.h).
  bool overlaps_gathers = false;
  /// Backwards of a pipeline leave weight gradients for the forward that follows, beside whose
  /// covered collectives they run (join_forwards.h).
  bool joins_forwards = false;
  GroupTable groups;  ///< that communication ops of the graph name
  std::function<void(const std::string& pass, const Graph&)> log;  ///< the graph after each pass
};

/// Expands, drops dead nodes, recomputes, fuses, chooses variants, cuts segments and assigns bytes.
/// Throws Bug on an illegal graph (a donated value read later), Error where no variant accepts.
Plan compile(const Graph& graph, const StateLayout& layout, const CompileOptions& options);

/// Says in one line each why a variant of a task's op was or was not taken: "linear: onednn: ok".
std::vector<std::string> explain_variants(const Node& node, const KernelTypes& types,
                                          const Target& target);

}  // namespace tokamak
