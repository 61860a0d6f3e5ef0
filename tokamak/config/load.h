// Makes a Config of a TOML file and command-line overrides. Every bad key is reported.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokamak/config/config.h"

namespace tokamak {

/// A value that asks for a feature that this build lacks.
struct Need {
  std::string key;
  std::string value;
  std::string reason;
};

/// Returns "needs: key = value: reason".
std::string needs_line(const Need& need);

struct LoadedConfig {
  Config config;
  /// One line for each name accepted without effect and each old name with what it became.
  std::vector<std::string> notes;
  /// What accepted names ask for and no field can hold; needs() adds the rest.
  std::vector<Need> needs;
  bool names_model = false;  ///< model.name was given, in a file or an override
};

/// Applies the file (or `--job.config_file`) to the defaults, then the overrides. Throws Error with
/// one line for every offending key: "FILE:LINE: section.key: wanted ..., got ...".
LoadedConfig load_config(const std::optional<std::filesystem::path>& toml,
                         std::span<const std::string> overrides);

/// Does the same from TOML text and is safe on any bytes. `name` stands for the file in messages.
LoadedConfig parse_toml_text(std::string_view text, const std::string& name,
                             std::span<const std::string> overrides = {});

}  // namespace tokamak
