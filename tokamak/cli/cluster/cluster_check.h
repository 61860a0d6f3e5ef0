// The check of all hosts of a job before it computes.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tokamak/cli/cluster/rank_report.h"
#include "tokamak/cli/cluster/rates.h"
#include "tokamak/comm/communicator.h"
#include "tokamak/comm/launch_environment.h"
#include "tokamak/exec/backend.h"

namespace tokamak::cli {

/// Measures every rank and what they say to each other. `folder` is where the run will write.
/// Returns the reports of all ranks on every rank, by rank. Collective.
std::vector<RankReport> check_cluster(World& control, World& ranks, Backend& backend,
                                      const LaunchEnvironment& launched,
                                      const std::filesystem::path& folder,
                                      const CheckEffort& effort = {});

/// Returns the seconds until the Slurm job's time limit; nothing outside of one, or if unknown.
std::optional<int64_t> seconds_of_allocation();

/// Reads Slurm's %L: "MM:SS", "HH:MM:SS", "D-HH:MM:SS"; nothing where it is another text.
std::optional<int64_t> parse_time_left(const std::string& text);

}  // namespace tokamak::cli
