// A job that Slurm runs: submitting it and following its log.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>

#include "tokamak/launch/slurm/batch_script.h"

namespace tokamak::launch {

/// Keeps the script as <folder>/slurm-ID.sh and returns the job's id. Throws Error with sbatch's
/// words where it refuses the job, or where it is missing.
std::string submit(const BatchJob& job);

/// A job as Slurm describes it.
struct SlurmState {
  std::string state;   ///< "PENDING", "RUNNING", "COMPLETED" ...
  std::string reason;  ///< why it waits
  int exit_code = 0;   ///< 128 + N for signal N
  bool is_over = false;
};

/// Reads a line of `scontrol show job --oneliner`; nothing where it is another text.
std::optional<SlurmState> parse_state(const std::string& line);

/// Prints what the job and its rank 0 write, and each change of its state, until the job is over.
/// Returns its exit code; 75 where Slurm ended it, says three times in a row that it knows no such
/// job, or does not answer 60 times in a row; and 130 where a signal ends the following, which
/// leaves the job alone and says so. It looks every `between`, and asks Slurm every fourth time.
int follow(const std::string& id, const std::filesystem::path& folder,
           std::chrono::milliseconds between = std::chrono::milliseconds(500));

}  // namespace tokamak::launch
