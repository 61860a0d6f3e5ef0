// `train --proxy`, and the table at the end of `train --preset`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tokamak/cli/run_config.h"
#include "tokamak/cli/verbs.h"
#include "tokamak/comm/launch_environment.h"
#include "tokamak/exec/backend.h"
#include "tokamak/run/proxy.h"
#include "tokamak/train/report/step_times.h"

namespace tokamak::cli {

/// Returns what a proxy may take on `device`: the ranks that a launcher has started, else a GPU
/// for each, else 16 processes that share the cores. `most_ranks` is the N of --proxy=N.
ProxyLimits proxy_limits(const std::string& device, std::optional<int64_t> most_ranks,
                         const LaunchEnvironment& launched);

/// Where `args` ask for a proxy of several ranks and no launcher has started this process, starts
/// the ranks as `tokamak launch -n N -- train` does and returns the exit code. Throws Error where
/// the ranks do not fit this machine's memory.
std::optional<int> launch_proxy(Args args, const LaunchEnvironment& launched);

/// Prints the preset's table with what `times` say of this run, and writes it as preset.json into
/// job.dump_folder. REQUIRES: run.preset.
void report_preset(const RunConfig& run, const Backend& backend, std::optional<double> peak_flops,
                   const StepTimes& times);

}  // namespace tokamak::cli
