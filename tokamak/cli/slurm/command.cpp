#include "tokamak/cli/slurm/command.h"

#include <cstdio>

#include <sys/wait.h>

#include "tokamak/cli/slurm/batch_script.h"
#include "tokamak/core/error.h"

namespace tokamak::cli {

CommandResult run_command(const std::vector<std::string>& words, const std::string& in_file) {
  std::string line;
  for (const std::string& word : words) line += shell_word(word) + " ";
  line += "2>&1 < " + shell_word(in_file.empty() ? "/dev/null" : in_file);
  std::FILE* const pipe = popen(line.c_str(), "r");
  if (pipe == nullptr) throw_errno(words[0]);
  CommandResult result;
  char part[4096];
  for (size_t count = 0; (count = std::fread(part, 1, sizeof part, pipe)) > 0;)
    result.out.append(part, count);
  const int status = pclose(pipe);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  while (!result.out.empty() && result.out.back() == '\n') result.out.pop_back();
  return result;
}

bool is_on_path(const std::string& program) {
  return run_command({"sh", "-c", "command -v " + shell_word(program)}).exit_code == 0;
}

}  // namespace tokamak::cli
