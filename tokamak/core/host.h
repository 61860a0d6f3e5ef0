// This host, the environment of this process, and other processes.
#pragma once

#include <string>
#include <vector>

#include <sys/types.h>

namespace tokamak {

/// Returns the words of /proc/PID/stat that follow the name in parentheses: state, parent, ... (see
/// proc(5), whose third field is the first word here). Returns nothing if there is no such process.
std::vector<std::string> process_stat(pid_t process);

/// Returns the name of this host; "" where the system gives none.
std::string host_name();

/// Returns the value of a variable of the environment; "" if it is not set.
std::string environment_variable(const char* name);

}  // namespace tokamak
