// The state of another process, from /proc.
#pragma once

#include <string>
#include <vector>

#include <sys/types.h>

namespace tokamak {

/// Returns the words of /proc/PID/stat that follow the name in parentheses: state, parent, ... (see
/// proc(5), whose third field is the first word here). Returns nothing if there is no such process.
std::vector<std::string> process_stat(pid_t process);

}  // namespace tokamak
