// --calibration FILE and --machine NAME of `tokamak bench op` and `bench comm`.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "tokamak/comm/launch_environment.h"

namespace tokamak::cli {

struct CalibrationOptions {
  std::string file;     ///< to write; empty = none
  std::string machine;  ///< refined by the file; empty = none

  void add_to(CLI::App& app);

  /// Throws Error if the machine is unknown, or missing though devices are GPUs, or does not
  /// connect these ranks, or if the first ranks do not fill a node, or if rank 0 cannot write the
  /// file.
  void check(bool on_gpus, const LaunchEnvironment& launched = {}) const;
};

}  // namespace tokamak::cli
