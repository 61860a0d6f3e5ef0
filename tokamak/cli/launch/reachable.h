// Which hosts answer to the shell by which mpirun starts ranks on them.
#pragma once

#include <string>
#include <vector>

namespace tokamak::cli {

/// Runs `true` on all `hosts` at once by ssh, or by the one program that OMPI_MCA_plm_rsh_agent
/// names. Returns those that fail or do not answer within 8 s.
std::vector<std::string> unreachable_hosts(const std::vector<std::string>& hosts);

}  // namespace tokamak::cli
