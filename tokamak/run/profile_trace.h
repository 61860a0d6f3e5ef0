// Chrome/Perfetto traces of what ran when.
#pragma once

#include <span>
#include <string>

#include "tokamak/plan/task_span.h"

namespace tokamak {

/// Returns trace-event JSON of the tasks of one rank's step. It has a lane for compute and one for
/// each other stream, named after the ops and groups of its tasks ("gather dp_shard"), and a
/// counter of the memory in use during compute: arenas as planned, scratch as its tasks use it.
/// Times are those of the machine's steady clock, so traces of ranks on one host line up. REQUIRES:
/// the spans' tasks are those of `plan`.
std::string chrome_trace(std::span<const TaskSpan> spans, const Plan& plan, int rank = 0);

/// One rank's part of a trace of several.
struct RankSpans {
  std::span<const TaskSpan> spans;
  const Plan* plan = nullptr;
  int rank = 0;
};

/// Returns the same of several ranks, each as one process.
std::string chrome_trace(std::span<const RankSpans> ranks);

}  // namespace tokamak
