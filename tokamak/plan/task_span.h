// When a task of a plan ran.
#pragma once

#include "tokamak/plan/plan.h"

namespace tokamak {

/// One task as it ran, for traces. Times in seconds of a steady clock.
struct TaskSpan {
  const Task* task = nullptr;
  double begin_s = 0.0;
  double end_s = 0.0;
};

}  // namespace tokamak
