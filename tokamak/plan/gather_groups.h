// Groups of a plan that do nothing but gather beside compute, which needs no kernels.
#pragma once

#include <span>
#include <vector>

#include "tokamak/plan/plan.h"

namespace tokamak {

/// Whether it gathers from scratch to scratch on another stream than the first.
bool gathers_beside_compute(const Task& task);

/// By group id of `plans`, which share their groups: whether the group has calls, and all of them
/// gather beside compute.
std::vector<bool> gather_groups(std::span<const Plan* const> plans);

}  // namespace tokamak
