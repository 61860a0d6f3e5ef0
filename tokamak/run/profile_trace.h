// What ran when: Chrome/Perfetto traces.
#pragma once

#include <span>
#include <string>

#include "tokamak/plan/task_span.h"

namespace tokamak {

/// Trace-event JSON of the tasks of one step of one rank: a lane for compute and one for each other
/// stream, named after what its tasks do among which groups ("gather dp_shard"), and a counter of
/// the memory that the plan has in use as compute goes on: arenas as planned, scratch as its tasks
/// use it. Times are those of the machine's steady clock, so traces of ranks on one host line up.
/// REQUIRES: the spans' tasks are of `plan`.
std::string chrome_trace(std::span<const TaskSpan> spans, const Plan& plan, int rank = 0);

/// One rank's part of a trace of several.
struct RankSpans {
  std::span<const TaskSpan> spans;
  const Plan* plan = nullptr;
  int rank = 0;
};

/// The same of several ranks, a process each.
std::string chrome_trace(std::span<const RankSpans> ranks);

}  // namespace tokamak
