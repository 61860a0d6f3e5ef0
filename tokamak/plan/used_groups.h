// Which groups of a run exist.
#pragma once

#include <span>

#include "tokamak/plan/plan.h"

namespace tokamak {

/// Drops of the groups that `plans` share those that no task names, which would cost their ranks a
/// communicator, and numbers the others anew.
void drop_unused_groups(std::span<Plan* const> plans);

}  // namespace tokamak
