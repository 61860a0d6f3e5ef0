// The memory in which the groups of a run gather concurrently with compute.
#pragma once

#include <span>
#include <vector>

#include "tokamak/comm/communicator.h"
#include "tokamak/exec/memory.h"
#include "tokamak/plan/plan.h"

namespace tokamak {

/// Returns, by group id of `plans` (which share their groups), the arenas between which each group
/// gathers that does so by copy engines or may do so (Plan::transports), and none for the others.
std::vector<GatheredMemory> gathered_memory(std::span<const Plan* const> plans,
                                            const Memory& memory);

}  // namespace tokamak
