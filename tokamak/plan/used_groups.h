// Which groups of a run exist.
#pragma once

#include <span>

#include "tokamak/plan/plan.h"

namespace tokamak {

/// Drops those groups that `plans` share but no task names, since each would cost its ranks a
/// communicator, and renumbers the others.
void drop_unused_groups(std::span<Plan* const> plans);

}  // namespace tokamak
