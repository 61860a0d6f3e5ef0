#include "tokamak/launch/process/child.h"

#include <csignal>

#include <sys/prctl.h>
#include <unistd.h>

#include "tokamak/core/error.h"

namespace tokamak::launch {

pid_t start_child(const std::vector<std::string>& words, const std::function<void()>& prepare) {
  constexpr int kCannotStart = 127;
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) throw_errno("fork");
  if (child > 0) {
    setpgid(child, child);
    return child;
  }
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kCannotStart);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGCHLD, SIGPIPE})
    std::signal(signal, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  prepare();
  execvp(argv[0], argv.data());
  _exit(kCannotStart);
}

}  // namespace tokamak::launch
