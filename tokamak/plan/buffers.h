// From values to bytes: storage sharing by views and donation (place_values.h), lifetimes, and
// offsets in the arenas (arenas.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tokamak/plan/plan.h"

namespace tokamak {

/// Nodes of one segment, by index in the graph, in order. Segments come in an order in which one
/// microbatch may run.
struct SegmentNodes {
  std::string name;
  Segment::Runs runs = Segment::Runs::kOnceBefore;
  std::optional<PipelinePoint> point;
  std::vector<int32_t> nodes;
  bool is_background = false;
};

/// Variants by node index (null for leaves and views).
using ChosenVariants = std::vector<const Variant*>;

/// Assigns every operand, the arenas and slot classes (one slot each) of the plan and its waits.
/// Throws Bug if bytes of a value are read after a later node has written over them, or a value of
/// a microbatch is read once a step.
///
/// Operands of another stream's task are kept from reuse, so that compute does not wait for them,
/// up to the first task of stream 0 that knows it to have ended, and at most until its stream comes
/// to the second next task of the same op: two of a kind in flight, as double buffering has it.
Plan assign_buffers(const Graph& graph, const StateLayout& layout,
                    const std::vector<SegmentNodes>& segments, const ChosenVariants& variants,
                    const Target& target);

}  // namespace tokamak
