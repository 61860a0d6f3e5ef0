// The check of all hosts of a job before it computes.
#pragma once

#include <filesystem>
#include <functional>
#include <vector>

#include "tokamak/comm/communicator.h"
#include "tokamak/comm/launch_environment.h"
#include "tokamak/exec/backend.h"
#include "tokamak/launch/cluster/rank_report.h"
#include "tokamak/launch/cluster/rates.h"

namespace tokamak::launch {

/// Fills in what the driver of a rank's GPU says of it.
using DescribeGpu = std::function<void(Backend&, RankReport&)>;

/// Measures every rank and what they say to each other. `folder` is where the run will write.
/// Returns the reports of all ranks on every rank, by rank. Collective.
std::vector<RankReport> check_cluster(World& control, World& ranks, Backend& backend,
                                      const LaunchEnvironment& launched,
                                      const std::filesystem::path& folder,
                                      const DescribeGpu& describe_gpu,
                                      const CheckEffort& effort = {});

}  // namespace tokamak::launch
