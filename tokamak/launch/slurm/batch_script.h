// The batch script of `tokamak launch --slurm`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tokamak/launch/slurm/site.h"

namespace tokamak::launch {

/// The values that a batch script is rendered from.
struct BatchJob {
  std::string written_by;  ///< the user's command, for the script's first line
  std::string name;
  int64_t nodes = 1;
  int64_t ranks_per_node = 1;
  int64_t cpus_per_rank = 1;
  std::string time;                 ///< as sbatch takes it; "" = the partition's default
  std::string partition;            ///< "" = the site's or the default one
  std::string account;              ///< "" = the user's
  std::string exclude;              ///< nodes, separated by commas
  std::vector<std::string> sbatch;  ///< further options of sbatch: "NAME" or "NAME=VALUE"
  int64_t save_seconds = 300;       ///< before the time limit, in which ranks save
  int64_t max_requeues = 20;
  std::string mpi = "auto";    ///< of srun --mpi, or mpirun; auto: the first that connects
  bool checks_cluster = true;  ///< `doctor --cluster` names hosts to leave out
  std::filesystem::path program;
  std::filesystem::path folder;    ///< the run's: job.dump_folder
  std::vector<std::string> words;  ///< a verb and the rest
  Site site;
};

/// Throws Error unless `time` is empty or one of sbatch's forms: M, M:S, H:M:S, D-H, D-H:M,
/// D-H:M:S.
void require_slurm_time(const std::string& time);

/// Returns the script. Options of `job.sbatch` override the site's and the defaults.
std::string to_script(const BatchJob& job);

}  // namespace tokamak::launch
