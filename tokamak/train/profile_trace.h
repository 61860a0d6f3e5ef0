// What ran when: Chrome/Perfetto traces, and time by op.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tokamak/exec/executor.h"

namespace tokamak {

/// Trace-event JSON of the tasks of one step, a lane each for forward, backward and update.
std::string chrome_trace(std::span<const TaskSpan> spans);

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
