// What ran when: Chrome/Perfetto traces, and time by op.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tokamak/exec/executor.h"

namespace tokamak {

/// Trace-event JSON of the tasks of one step of one rank: a lane for compute and one for each other
/// stream. Times are those of the machine's steady clock, so traces of ranks on one host line up.
std::string chrome_trace(std::span<const TaskSpan> spans, int rank = 0);

struct OpTime {
  std::string op;
  int64_t calls = 0;
  double seconds = 0.0;
  double flops = 0.0;
  double bytes = 0.0;
};

/// Sums by op name, slowest first.
std::vector<OpTime> time_by_op(std::span<const TaskSpan> spans);

}  // namespace tokamak
