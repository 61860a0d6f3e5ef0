// A site file says what a cluster wants of a Slurm job: sites/*.toml, or a file of the user's.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tokamak::launch {

/// One setting of a site, in the file's order. The value may hold shell variables, which the batch
/// script expands.
struct SiteSetting {
  std::string name;
  std::string value;
  std::string why;
};

struct Site {
  std::string name;
  std::string about;
  int64_t ranks_per_node = 0;            ///< 0 = the site does not say
  int64_t cpus_per_rank = 0;             ///< likewise
  std::vector<SiteSetting> sbatch;       ///< options of sbatch without their dashes; "" = no value
  std::vector<SiteSetting> srun;         ///< likewise of srun
  std::vector<SiteSetting> mpirun;       ///< likewise of Open MPI's mpirun
  std::vector<SiteSetting> environment;  ///< variables of all ranks
  std::vector<SiteSetting> before;       ///< shell lines before the ranks start
  std::vector<SiteSetting> after;        ///< and after they have ended
  SiteSetting broadcast_to;              ///< the program's copy on each node; no value = none
};

/// Reads a site from TOML, in which each setting is { value, why }; `name` is the file's. Throws
/// Error "FILE:LINE: KEY: ..." for unknown keys, for settings without a reason, and for values that
/// would end a shell string.
Site parse_site(std::string_view text, const std::string& name);

/// Returns the site of this name or, where the word has a slash or ends in .toml, of this file.
/// Throws Error that names the nearest site.
Site find_site(const std::string& word);

/// Returns a line for each site: name, ranks per node, and what it is.
std::string sites_text();

}  // namespace tokamak::launch
