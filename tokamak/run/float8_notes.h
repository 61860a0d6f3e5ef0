// Marks the matmuls that a run quantizes, and tells the user which ones they are.
#pragma once

#include <string>
#include <vector>

#include "tokamak/run/planned_run.h"

namespace tokamak {

struct Float8Notes {
  std::vector<std::string> notes;  ///< which matmuls are not quantized, and why
  std::string line;                ///< see PlannedRun::float8_line()
};

/// Marks the matmuls that the run quantizes. Throws Error if no matmul of the model can be.
Float8Notes mark_and_note(Graph& graph, const RunShape& shape);

}  // namespace tokamak
