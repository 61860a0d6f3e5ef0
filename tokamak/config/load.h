// From a TOML file and command-line overrides to a Config. Every bad key is reported, none ignored.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokamak/config/config.h"

namespace tokamak {

/// What this build lacks for one value; printed as "needs: key = value: reason".
struct Need {
  std::string key;
  std::string value;
  std::string reason;
};

/// "needs: key = value: reason".
std::string needs_line(const Need& need);

struct LoadedConfig {
  Config config;
  /// One line each: keys accepted without effect, retired names and what they became.
  std::vector<std::string> notes;
  /// What retired keys ask for and no field can hold; needs() adds the rest.
  std::vector<Need> needs;
};

/// Defaults, then the file (or `--job.config_file`), then the overrides. Throws Error with one line
/// for every offending key: "FILE:LINE: section.key: wanted ..., got ...".
LoadedConfig load_config(const std::optional<std::filesystem::path>& toml,
                         std::span<const std::string> overrides);

/// The same from TOML text; safe on any bytes. `name` stands for the file in messages.
LoadedConfig parse_toml_text(std::string_view text, const std::string& name,
                             std::span<const std::string> overrides = {});

}  // namespace tokamak
