// Runs other programs to their end.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tokamak::launch {

struct CommandResult {
  int exit_code = 0;
  std::string out;
  std::string err;
};

/// Runs `words` with the file `in_file` on standard input, or nothing, and waits. Exit code 127:
/// there is no such program.
CommandResult run_command(const std::vector<std::string>& words, const std::string& in_file = "");

/// Returns `word` as a shell reads it back.
std::string shell_word(std::string_view word);

/// Whether `program` is on PATH.
bool is_on_path(const std::string& program);

}  // namespace tokamak::launch
