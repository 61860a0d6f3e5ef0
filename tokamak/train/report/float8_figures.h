// Reads from State what fp8.jsonl says of the last step.
#pragma once

#include <string>
#include <vector>

#include "tokamak/comm/communicator.h"
#include "tokamak/exec/memory.h"
#include "tokamak/graph/mesh.h"
#include "tokamak/train/report/metrics_file.h"

namespace tokamak {

/// Returns the figures of this rank's sites (float8_stats.h), or nothing where none are counted.
std::vector<Float8Figures> read_float8_figures(const StateAccess& access);

/// Returns the lines of a step for the sites of all ranks. One rank gives those of the ranks that
/// run the same blocks, since all of these have the same figures. Collective.
std::string float8_lines(World& world, const Mesh& mesh, const StateAccess& access, int64_t step);

}  // namespace tokamak
