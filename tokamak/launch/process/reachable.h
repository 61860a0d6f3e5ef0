// Which hosts answer to the shell by which mpirun starts ranks on them.
#pragma once

#include <string>
#include <vector>

namespace tokamak::launch {

/// Returns words that run `command`, a line for a shell, on `host`: by ssh, or by the one program
/// that OMPI_MCA_plm_rsh_agent names.
std::vector<std::string> remote_words(const std::string& host, const std::string& command);

/// Runs `true` on all `hosts` at once. Returns those that fail or do not answer within 8 s.
std::vector<std::string> unreachable_hosts(const std::vector<std::string>& hosts);

}  // namespace tokamak::launch
