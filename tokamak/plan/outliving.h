// Streams that outlive their item: gradients are reduced, or weights gathered, beside what the
// pipeline does next.
#pragma once

#include "tokamak/plan/plan.h"

namespace tokamak {

/// Lets streams outlive the items of their segments where all their tasks run in the last
/// microbatch only and touch only State, so nothing else in an arena has to live longer for them.
/// REQUIRES: the plan has items.
void let_reductions_outlive(Plan& plan);

/// Lets streams outlive the items that run once before where all their tasks touch only State and
/// what is carried: the gathers of weights that stay for the step. REQUIRES: the plan has items.
void let_gathers_outlive(Plan& plan);

/// Makes later items that touch the same bytes as an item's outliving tasks wait for them, up to
/// the first such item of the foreground.
void wait_for_outliving(Plan& plan);

}  // namespace tokamak
