// Pictures of a pipeline schedule in unit times: F, I and W take one, B takes two.
#pragma once

#include <string>

#include "tokamak/pipeline/schedule.h"

namespace tokamak {

/// Returns a row for each rank with a cell for each unit of time. Actions are named as in a
/// schedule's file ("2F0"), or without the stage where each rank has one ("F0"); dots are idle
/// time, dashes continue the action before them. Below are what each rank holds and its idle time.
std::string schedule_text(const PipelineSchedule& schedule);

}  // namespace tokamak
