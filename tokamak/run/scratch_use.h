// How much of the scratch arena a segment's tasks use, by the lifetimes that its plan implies.
#pragma once

#include <cstdint>
#include <vector>

#include "tokamak/plan/plan.h"

namespace tokamak {

/// Returns for each task the scratch bytes that hold something which it or a later task reads, or
/// its outputs or workspace.
std::vector<int64_t> scratch_in_use(const Segment& segment);

}  // namespace tokamak
