// Graph to plan: the passes after differentiation, as one readable list of calls.
#pragma once

#include <string>

#include "tokamak/graph/passes.h"
#include "tokamak/pipeline/schedule.h"
#include "tokamak/plan/plan.h"

namespace tokamak {

struct CompileOptions {
  RecomputePolicy recompute;
  bool fuse = true;          ///< sums and neighbours (fuse.h)
  bool fuse_readers = true;  ///< what takes maxima of values or lowers them with what computes them
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
};

/// Expands, drops dead nodes, recomputes, fuses, chooses variants, cuts segments and assigns bytes.
/// Throws Bug on an illegal graph (a donated value read later), Error where no variant accepts.
Plan compile(const Graph& graph, const StateLayout& layout, const CompileOptions& options);

/// Says in one line each why a variant of a task's op was or was not taken: "linear: onednn: ok".
std::vector<std::string> explain_variants(const Node& node, const KernelTypes& types,
                                          const Target& target);

}  // namespace tokamak
