// From values to bytes: storage sharing by views and donation (place_values.h), lifetimes, and
// offsets in the arenas (arenas.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tokamak/plan/plan.h"

namespace tokamak {

/// The nodes of one segment, by index in the graph, in order. Segments are in an order in which one
/// microbatch may run.
struct SegmentNodes {
  std::string name;
  Segment::Runs runs = Segment::Runs::kOnceBefore;
  std::optional<PipelinePoint> point;
  std::vector<int32_t> nodes;
  bool is_background = false;
  std::optional<int> before_stage = {};
};

/// Variants by node index (null for leaves and views).
using ChosenVariants = std::vector<const Variant*>;

/// Assigns every operand, the arenas and slot classes (one slot each) of the plan and its waits.
/// Throws Bug if bytes of a value are read after a later node has written over them, or if a
/// once-a-step segment reads a value of a microbatch.
///
/// So that compute does not wait for a task of another stream, that task's operands are not reused
/// before the first task of stream 0 that knows it to have ended. They are kept at most until its
/// stream reaches the second next task of the same op: as in double buffering, two are in flight.
Plan assign_buffers(const Graph& graph, const StateLayout& layout,
                    const std::vector<SegmentNodes>& segments, const ChosenVariants& variants,
                    const Target& target);

}  // namespace tokamak
