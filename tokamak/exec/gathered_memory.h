// Where the groups of a run gather beside compute.
#pragma once

#include <span>
#include <vector>

#include "tokamak/comm/communicator.h"
#include "tokamak/exec/memory.h"
#include "tokamak/plan/plan.h"

namespace tokamak {

/// By group id of `plans`, which share their groups: the scratch arena, of those that gather by
/// copy engines or may (Plan::carriers); else none.
std::vector<GatheredMemory> gathered_memory(std::span<const Plan* const> plans,
                                            const Memory& memory);

}  // namespace tokamak
