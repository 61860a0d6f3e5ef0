// `tokamak doctor --cluster`.
#pragma once

#include <string>

#include "tokamak/cli/verbs.h"

namespace tokamak::cli {

struct ClusterWords {
  std::string folder = "outputs";
  std::string device = "auto";
  std::string settings;  ///< a file for shell scripts: the hosts to leave out
  bool json = false;
};

/// Checks the hosts of all ranks that a launcher has started with these words. Rank 0 prints.
/// Returns 75 where hosts should be left out.
int run_doctor_cluster(const ClusterWords& words);

}  // namespace tokamak::cli
