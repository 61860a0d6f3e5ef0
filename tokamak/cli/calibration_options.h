// --calibration FILE and --machine NAME of `tokamak bench op` and `bench comm`.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "tokamak/comm/launch_environment.h"

namespace tokamak::cli {

struct CalibrationOptions {
  std::string file;     ///< to write; empty = none
  std::string machine;  ///< that it refines; empty = one of its own

  void add_to(CLI::App& app);

  /// Throws Error if the machine is unknown, or missing though devices are GPUs, or if it does not
  /// connect these ranks, of which the first fill a node and the first of all can write the file.
  void check(bool on_gpus, const LaunchEnvironment& launched = {}) const;
};

}  // namespace tokamak::cli
