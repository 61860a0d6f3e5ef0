// From values to bytes: storage sharing by views and donation, lifetimes, and offsets in the
// arenas.
#pragma once

#include <vector>

#include "tokamak/graph/plan.h"

namespace tokamak {

/// Half-open lifetime [first, last] in task order and size; `offset` is the result.
struct Lifetime {
  int32_t first = 0;
  int32_t last = 0;
  int64_t bytes = 0;
  int64_t offset = 0;
};

/// Assigns offsets so that lifetimes which overlap in time never overlap in bytes; returns the
/// bytes needed. Largest first, each at the lowest offset that fits.
int64_t pack(std::vector<Lifetime>& lifetimes);

/// Nodes of one segment, by index in the graph, in order.
struct SegmentNodes {
  std::string name;
  Segment::Runs runs = Segment::Runs::kOncePerStep;
  std::vector<int32_t> nodes;
};

/// Variants by node index (null for leaves and views).
using ChosenVariants = std::vector<const Variant*>;

/// Assigns every operand and the arenas of the plan. Throws Bug if a value is read after its
/// storage was donated.
Plan assign_buffers(const Graph& graph, const StateLayout& layout,
                    const std::vector<SegmentNodes>& segments, const ChosenVariants& variants,
                    const Target& target);

}  // namespace tokamak
