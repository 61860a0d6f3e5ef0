// What `train` and `plan` share: words into a checked configuration and what is missing for it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tokamak/cli/verbs.h"
#include "tokamak/config/load.h"

namespace tokamak::cli {

struct RunConfig {
  Config config;
  std::vector<std::string> notes;
  std::vector<Need> needs;
  bool dry_run = false;
  bool print = false;  ///< plan --print
  bool why = false;    ///< plan --why
};

/// Parses `[FILE.toml] [overrides] [--dry-run] [--world-size=N]`; prints help and returns nothing
/// if that was asked. Throws Error with every config error.
std::optional<RunConfig> load_run_config(Args args, const std::string& verb);

}  // namespace tokamak::cli
