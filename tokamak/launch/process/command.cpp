#include "tokamak/launch/process/command.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include <sys/wait.h>
#include <unistd.h>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"

namespace tokamak::launch {

std::string shell_word(std::string_view word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=:,./@%^";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string_view::npos)
    return std::string(word);
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

CommandResult run_command(const std::vector<std::string>& words, const std::string& in_file) {
  std::string line;
  for (const std::string& word : words) line += shell_word(word) + " ";
  std::string err_file = std::filesystem::temp_directory_path() / "tokamak-stderr-XXXXXX";
  const int fd = mkstemp(err_file.data());
  if (fd < 0) throw_errno("mkstemp " + err_file);
  close(fd);
  line += fmt::format("2> {} < {}", shell_word(err_file),
                      shell_word(in_file.empty() ? "/dev/null" : in_file));
  std::FILE* const pipe = popen(line.c_str(), "r");
  if (pipe == nullptr) throw_errno(words[0]);
  CommandResult result;
  char part[4096];
  for (size_t count = 0; (count = std::fread(part, 1, sizeof part, pipe)) > 0;)
    result.out.append(part, count);
  const int status = pclose(pipe);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.err = read_file(err_file);
  std::filesystem::remove(err_file);
  for (std::string* text : {&result.out, &result.err}) {
    while (text->ends_with('\n')) text->pop_back();
  }
  return result;
}

bool is_on_path(const std::string& program) {
  return run_command({"sh", "-c", "command -v " + shell_word(program)}).exit_code == 0;
}

}  // namespace tokamak::launch
