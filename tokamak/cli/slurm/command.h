// Runs Slurm's own commands.
#pragma once

#include <string>
#include <vector>

namespace tokamak::cli {

struct CommandResult {
  int exit_code = 0;
  std::string out;
  std::string err;
};

/// Runs `words` with the file `in_file` on standard input, or nothing, and waits. Exit code 127:
/// there is no such program.
CommandResult run_command(const std::vector<std::string>& words, const std::string& in_file = "");

/// Whether `program` is on PATH.
bool is_on_path(const std::string& program);

}  // namespace tokamak::cli
