// The check of the hosts by `train`, before step 0.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "tokamak/comm/communicator.h"
#include "tokamak/comm/launch_environment.h"
#include "tokamak/exec/backend.h"
#include "tokamak/launch/cluster/cluster_check.h"

namespace tokamak::launch {

/// Names a file into which rank 0 writes the hosts that the check leaves out, as to_settings()
/// does. `launch` and the batch script of `launch --slurm` set it, and start again elsewhere.
inline constexpr const char* kLeaveOutVariable = "TOKAMAK_LEAVE_OUT";

/// Is not empty where `doctor --cluster` has checked these hosts already.
inline constexpr const char* kCheckedVariable = "TOKAMAK_CLUSTER_CHECKED";

struct Preflight {
  std::string when = "auto";     ///< comm.check_cluster: auto, strict or never
  std::filesystem::path folder;  ///< job.dump_folder
  DescribeGpu describe_gpu;      ///< not called where ranks have CPUs
  /// Prints a line of the log on rank 0.
  std::function<void(const char* level, const std::string& text)> print;
};

/// Checks the hosts as `doctor --cluster` does, in less than 10 s. "auto" does so where ranks lie
/// on several hosts and only warns of slow ones; "strict" also on one host, and leaves slow ones
/// out. Nothing is checked where kCheckedVariable is not empty on rank 0. Throws SystemError on all
/// ranks where hosts are left out, and Error where the folder is shared by no two of many.
/// Collective.
void check_before_training(World& control, World& ranks, Backend& backend,
                           const LaunchEnvironment& launched, const Preflight& preflight);

}  // namespace tokamak::launch
