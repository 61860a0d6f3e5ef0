// A test tool that runs the items of all ranks.
#pragma once

#include <vector>

#include "tokamak/pipeline/schedule.h"

namespace tokamak {

/// Throws Error unless `items` (by rank) hold the schedule's actions in order, every message is
/// sent and received once, before its use, and all ranks finish. Sends wait until the peer posts
/// its receive, and match in order between two ranks; receives block too (`blocking_receives`), or
/// ranks wait for them at their first use.
void check_items(const PipelineSchedule& schedule,
                 const std::vector<std::vector<PipelineItem>>& items, bool blocking_receives);

}  // namespace tokamak
