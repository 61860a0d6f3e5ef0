// What all ranks of a job do, or fail at, together: no rank goes on alone after another one failed.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tokamak/comm/communicator.h"

namespace tokamak {

/// Runs `work` on every rank; returns every rank's text, by rank. Where it throws on any rank,
/// every rank throws what the first of those threw, of the same kind (Error, SystemError,
/// Diverged, Bug), with that rank's number before the text. Collective; `work` itself is not.
std::vector<std::string> all_together(World& world, const std::function<std::string()>& work);

/// Runs `work` on rank 0 alone; returns its text, or throws its error, on every rank. Collective.
std::string on_rank_zero(World& world, const std::function<std::string()>& work);

}  // namespace tokamak
