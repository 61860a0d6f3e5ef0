// Pipeline schedules from files, in the format of torch.distributed.pipelining.
#pragma once

#include <string>
#include <string_view>

#include "tokamak/pipeline/schedule.h"

namespace tokamak {

/// A row for each rank, a cell for each action: "2F0" (stage 2, forward of microbatch 0), "3B1",
/// "2I1", "2W1", "(0F3;3B1)OVERLAP_F_B"; empty cells are skipped. Ranks of stages and counts follow
/// from the cells. A B whose W stands in the row too is an I, as older files write it. Cells of
/// communication (SEND_F, UNSHARD, ...) are skipped: lower_schedule() plans it. `name` is the
/// file's, for messages. Throws Error with name, row and cell; the schedule has passed
/// check_schedule().
PipelineSchedule parse_schedule_csv(std::string_view text, const std::string& name);

}  // namespace tokamak
