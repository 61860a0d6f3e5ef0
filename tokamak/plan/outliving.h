// Streams that run on after their item: gradients are reduced beside what the pipeline does next.
#pragma once

#include "tokamak/plan/plan.h"

namespace tokamak {

/// Lets streams outlive the items of their segments where they may: all their tasks run in the last
/// microbatch only and touch State alone, so nothing else in an arena has to live longer for them.
/// REQUIRES: the plan has items.
void let_reductions_outlive(Plan& plan);

/// Adds waits for what outlives an item to the later items that touch the same bytes, up to the
/// first of the foreground.
void wait_for_outliving(Plan& plan);

}  // namespace tokamak
