// Pictures of a pipeline schedule in unit times: F, I and W take one, B takes two.
#pragma once

#include <string>

#include "tokamak/pipeline/schedule.h"

namespace tokamak {

/// A row for each rank, a cell for each unit of time. Actions are named as in a schedule's file
/// ("2F0"), or without the stage where each rank has one ("F0"); dots are idle time, dashes go on
/// with the action before them. Then what each rank holds and how long it is idle.
std::string schedule_text(const PipelineSchedule& schedule);

/// The same as an SVG picture: a color for each kind of action, darker for later chunks of a rank,
/// microbatches as numbers.
std::string schedule_svg(const PipelineSchedule& schedule);

}  // namespace tokamak
