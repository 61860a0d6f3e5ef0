// Parses the command line of `train` and `plan` into a checked configuration and its `needs:`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tokamak/cli/console.h"
#include "tokamak/cli/verbs.h"
#include "tokamak/comm/launch_environment.h"
#include "tokamak/config/load.h"
#include "tokamak/run/mesh_options.h"
#include "tokamak/run/proxy.h"

namespace tokamak::cli {

struct RunConfig {
  Config config;
  std::vector<std::string> notes;
  std::vector<Need> needs;
  MeshPlace place;  ///< of this rank, or of rank 0 if no launcher has started ranks
  bool dry_run = false;
  bool is_of_this_machine = true;     ///< no --world-size, and the device is present
  std::optional<std::string> preset;  ///< its name
  std::optional<Proxy> proxy;         ///< train --proxy: how `config` was scaled down
  LogStyle log;                       ///< train --color, --log-format
  bool print = false;                 ///< plan --print
  bool check = false;                 ///< plan --check
  bool why = false;                   ///< plan --why
  bool print_schedule = false;        ///< plan --print-schedule
};

/// Parses `[FILE.toml] [overrides] [--dry-run] [--world-size=N]`; prints help and returns nothing
/// if that was asked. The mesh has the ranks that the launcher has started or, without a launcher,
/// the product of its degrees. With `--proxy` the file or preset is scaled down and the overrides
/// apply after that; --world-size is then that of the whole run. Throws Error with every config
/// error.
std::optional<RunConfig> load_run_config(Args args, const std::string& verb,
                                         const LaunchEnvironment& launched);

/// Throws Error if load_run_config() would for a key or a value by itself, whatever the mesh and
/// the other keys.
void check_run_keys(Args args, const std::string& verb);

/// Returns what a price of the step leaves out, because no Tokamak plan has it. Low precision is
/// priced, but without `plans_low` for all matmuls of blocks alike.
std::vector<Need> unpriced(const Config& config, bool plans_low);

}  // namespace tokamak::cli
