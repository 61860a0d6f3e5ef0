// --calibration FILE and --machine NAME of `tokamak bench op` and `bench comm`.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace tokamak::cli {

struct CalibrationOptions {
  std::string file;     ///< to write; empty = none
  std::string machine;  ///< that it refines; empty = one of its own

  void add_to(CLI::App& app);

  /// Throws Error if the machine is unknown, or missing though devices are GPUs, or if it does not
  /// connect so many ranks, of which the first can write the file.
  void check(bool on_gpus, int rank = 0, int num_ranks = 1) const;
};

}  // namespace tokamak::cli
