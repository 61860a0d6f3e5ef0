// A schedule in time: when each action begins and ends, given durations, without a machine or plan.
#pragma once

#include <vector>

#include "tokamak/pipeline/schedule.h"

namespace tokamak {

/// Durations are in any one unit of time. A kBackward takes backward_input + backward_weight.
struct StageDurations {
  double forward = 1.0;
  double backward_input = 1.0;
  double backward_weight = 1.0;
};

struct PipelineDurations {
  std::vector<StageDurations> stages;  ///< by stage; empty: all ones
  double pair_factor = 1.0;            ///< an overlapped pair takes this times the sum of the two
  double transfer = 0.0;  ///< from the end on one rank to the possible start on another
};

struct TimedAction {
  PipelineAction action;
  double begin = 0.0;
  double end = 0.0;
};

struct Timeline {
  std::vector<std::vector<TimedAction>> ranks;  ///< both of an overlapped pair have its times
  std::vector<double> busy;                     ///< by rank
  double makespan = 0.0;                        ///< the last rank's end: a barrier ends the step

  double idle(int rank) const { return makespan - busy[rank]; }

  /// Time beyond that of ranks that never wait, as a fraction of it: (p - 1) / m for 1F1B.
  double bubble_fraction() const;
};

/// Every rank runs its list in order, each action as soon as its inputs are there. Throws Error
/// that names ranks and actions if that ends in a deadlock. REQUIRES: each action occurs once and
/// its stage and microbatch exist.
Timeline simulate_schedule(const PipelineSchedule& schedule, const PipelineDurations& durations);

}  // namespace tokamak
