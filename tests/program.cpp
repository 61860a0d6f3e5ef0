#include "tests/program.h"

#include <cerrno>
#include <csignal>
#include <cstdlib>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"

namespace tokamak {
namespace {

constexpr int kCannotStart = 127;

[[noreturn]] void become(const std::vector<char*>& argv, const char* folder, const char* in,
                         const char* out, const char* err) {
  const int flags = O_WRONLY | O_CREAT | O_TRUNC;
  const int in_fd = open(in, O_RDONLY);
  const int out_fd = open(out, flags, 0600);
  const int err_fd = open(err, flags, 0600);
  if (dup2(out_fd, 1) == 1 && dup2(err_fd, 2) == 2 && dup2(in_fd, 0) == 0 && chdir(folder) == 0) {
    execvp(argv[0], argv.data());
  }
  _exit(kCannotStart);
}

int reap(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) throw_errno("waitpid");
  }
  return status;
}

}  // namespace

RunningProgram::RunningProgram(const std::vector<std::string>& argv,
                               const std::filesystem::path& folder, const std::string& in)
    : name_(argv[0]) {
  const std::string in_path = scratch_.path() / "in";
  const std::string out = scratch_.path() / "out";
  const std::string err = scratch_.path() / "err";
  FileWriter(in_path).write(in);
  std::vector<char*> words;
  words.reserve(argv.size() + 1);
  for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  child_ = fork();
  if (child_ < 0) throw_errno("fork");
  if (child_ == 0) become(words, folder.c_str(), in_path.c_str(), out.c_str(), err.c_str());
}

RunningProgram::~RunningProgram() {
  if (child_ <= 0) return;
  kill(child_, SIGKILL);
  waitpid(child_, nullptr, 0);
}

void RunningProgram::send(int signal) const {
  if (kill(child_, signal) != 0) throw_errno("kill " + name_);
}

ProgramResult RunningProgram::wait() {
  const int status = reap(child_);
  child_ = 0;
  if (WIFEXITED(status) && WEXITSTATUS(status) == kCannotStart) {
    throw SystemError(fmt::format("cannot start {}", name_));
  }
  return {.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
          .out = read_file(scratch_.path() / "out"),
          .err = read_file(scratch_.path() / "err")};
}

ProgramResult run_program(const std::vector<std::string>& argv, const std::filesystem::path& folder,
                          const std::string& in) {
  return RunningProgram(argv, folder, in).wait();
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
