// Pipeline schedules from files, in the format of torch.distributed.pipelining.
#pragma once

#include <string>
#include <string_view>

#include "tokamak/pipeline/schedule.h"

namespace tokamak {

/// The text has a row for each rank and a cell for each action: "2F0" (stage 2, forward of
/// microbatch 0), "3B1", "2I1", "2W1", "(0F3;3B1)OVERLAP_F_B"; empty cells are skipped. The cells
/// give all counts and the rank of each stage. A B whose W is in the row too means I, as older
/// files write it. Communication cells (SEND_F, UNSHARD, ...) are skipped: lower_schedule() plans
/// that. `name` is the file's, for messages. Throws Error with name, row and cell; the schedule has
/// passed check_schedule().
PipelineSchedule parse_schedule_csv(std::string_view text, const std::string& name);

}  // namespace tokamak
