#include "tests/program.h"

#include <cerrno>
#include <cstdlib>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"

namespace tokamak {
namespace {

constexpr int kCannotStart = 127;

[[noreturn]] void become(const std::vector<char*>& argv, const char* folder, const char* out,
                         const char* err) {
  const int flags = O_WRONLY | O_CREAT | O_TRUNC;
  const int out_fd = open(out, flags, 0600);
  const int err_fd = open(err, flags, 0600);
  const int null_fd = open("/dev/null", O_RDONLY);
  if (dup2(out_fd, 1) == 1 && dup2(err_fd, 2) == 2 && dup2(null_fd, 0) == 0 && chdir(folder) == 0) {
    execvp(argv[0], argv.data());
  }
  _exit(kCannotStart);
}

}  // namespace

ProgramResult run_program(const std::vector<std::string>& argv,
                          const std::filesystem::path& folder) {
  const ScratchFolder scratch;
  const std::string out = scratch.path() / "out";
  const std::string err = scratch.path() / "err";
  std::vector<char*> words;
  words.reserve(argv.size() + 1);
  for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);

  const pid_t child = fork();
  if (child < 0) throw_errno("fork");
  if (child == 0) become(words, folder.c_str(), out.c_str(), err.c_str());
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) throw_errno("waitpid");
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == kCannotStart) {
    throw SystemError(fmt::format("cannot start {}", argv[0]));
  }
  return {.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
          .out = read_file(out),
          .err = read_file(err)};
}

ScratchFolder::ScratchFolder() {
  std::string name = std::filesystem::temp_directory_path() / "tokamak-XXXXXX";
  if (mkdtemp(name.data()) == nullptr) throw_errno("mkdtemp " + name);
  path_ = name;
}

ScratchFolder::~ScratchFolder() {
  std::error_code code;
  std::filesystem::remove_all(path_, code);
}

}  // namespace tokamak
