// Forwards run together with weight gradients of the backward before them, so that these cover
// their collectives.
#pragma once

#include <vector>

#include "tokamak/plan/plan.h"

namespace tokamak {

/// Appends a segment for each two stages of which `items` run a backward and right after it a
/// forward, where the backward leaves weight gradients (cover_collectives). It has the forward's
/// tasks in their order, and weight gradients in front of those that wait for a covered collective.
/// Operands are those of the segments apart, but for scratch of the weight gradients, which lies
/// behind all other scratch, and for their slots, which are those of aliases (SlotClass::alias_of).
/// REQUIRES: slots are not assigned yet.
void join_forwards(Plan& plan, const std::vector<PipelineItem>& items, const Rates& rates);

/// Removes what join_forwards() has appended. Returns whether that was anything.
bool part_forwards(Plan& plan);

}  // namespace tokamak
