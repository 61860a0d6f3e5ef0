#include "tokamak/cli/launch/launch_rank.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include <fmt/format.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tokamak/cli/verbs.h"
#include "tokamak/comm/flight_file.h"
#include "tokamak/comm/launch_environment.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"

namespace tokamak::cli {
namespace {

constexpr std::string_view kVerb = "launch-rank";
constexpr std::string_view kPrintEnvironment = "--print-env";
constexpr int kCannotStart = 127;

int count_cores() {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

/// Splits this host's cores among its ranks unless the user has decided.
void share_threads(const LaunchEnvironment& environment) {
  const int threads = std::max(1, count_cores() / environment.local_size);
  setenv("OMP_NUM_THREADS", std::to_string(threads).c_str(), 0);
}

[[noreturn]] void become_rank(Args words, pid_t watcher, const sigset_t& mask) {
  // The rank gets its own process group, because mpirun signals its child's whole group and the
  // watcher passes signals on.
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != watcher) _exit(kCannotStart);
  sigprocmask(SIG_SETMASK, &mask, nullptr);
  const bool is_program = words[0].find('/') != std::string::npos;
  std::vector<char*> argv;
  std::string self = "tokamak";
  if (!is_program) argv.push_back(self.data());
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execv(is_program ? argv[0] : "/proc/self/exe", argv.data());
  fmt::print(stderr, "tokamak: cannot start {}: {}\n", words[0], std::strerror(errno));
  _exit(is_program ? static_cast<int>(ExitCode::kUserError) : kCannotStart);
}

/// Passes signals on to the rank until it has ended. mpirun forwards SIGUSR1, which stands for a
/// SIGTERM that the user sent; its own SIGTERM means that the job is lost.
RankEnd watch(pid_t rank, const sigset_t& signals) {
  const pid_t parent = getppid();
  RankEnd end;
  while (true) {
    const timespec patience{.tv_sec = 0, .tv_nsec = 300'000'000};
    const int signal = sigtimedwait(&signals, nullptr, &patience);
    int status = 0;
    if (waitpid(rank, &status, WNOHANG) == rank) {
      end.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      return end;
    }
    if (getppid() != parent) kill(rank, SIGKILL);
    if (signal == SIGUSR1) kill(rank, SIGTERM);
    if (signal == SIGTERM || signal == SIGINT || signal == SIGHUP) {
      end.was_told = true;
      kill(rank, SIGTERM);
    }
  }
}

std::filesystem::path end_path(const std::filesystem::path& folder, int64_t rank) {
  return folder / fmt::format("end-{}", rank);
}

/// On the launcher's host the end goes to the job's folder; elsewhere it is printed.
void report_end(const RankEnd& end, const LaunchEnvironment& environment,
                const std::filesystem::path& folder, const std::string& launch_host) {
  if (environment.host == launch_host) {
    FileWriter file(end_path(folder, environment.rank));
    file.write(fmt::format("{} {} {}", end.exit_code, end.was_told ? 1 : 0, environment.host));
    return;
  }
  if (end.exit_code > 128 && !end.was_told) {
    fmt::print(stderr, "tokamak: rank {} on {} died of signal {} ({})\n", environment.rank,
               environment.host, end.exit_code - 128, strsignal(end.exit_code - 128));
  }
  const auto flight = folder / fmt::format("rank-{}", environment.rank);
  if (end.exit_code != 0 && path_exists(flight)) {
    fmt::print(stderr, "  {}\n", describe(FlightFile::open(folder, environment.rank).page()));
  }
  std::error_code code;
  std::filesystem::remove(flight, code);
  std::filesystem::remove(folder, code);
}

}  // namespace

std::optional<RankEnd> read_rank_end(const std::filesystem::path& folder, int64_t rank) {
  const auto path = end_path(folder, rank);
  if (!path_exists(path)) return std::nullopt;
  RankEnd end;
  std::istringstream(read_file(path)) >> end.exit_code >> end.was_told >> end.host;
  return end;
}

std::vector<std::string> watcher_words(const std::filesystem::path& folder, const std::string& host,
                                       bool print_environment) {
  std::vector<std::string> words{std::filesystem::read_symlink("/proc/self/exe"),
                                 std::string(kVerb), folder, host};
  if (print_environment) words.emplace_back(kPrintEnvironment);
  return words;
}

int run_launch_rank(Args args) {
  TOK_CHECK(args.size() >= 3, "tokamak {} is for tokamak launch", kVerb);
  const LaunchEnvironment environment = read_launch_environment();
  share_threads(environment);
  if (args[2] == kPrintEnvironment) {
    fmt::print("{}, OMP_NUM_THREADS={}\n", to_string(environment), std::getenv("OMP_NUM_THREADS"));
    return 0;
  }
  setenv(kFlightFolderVariable, args[0].c_str(), 1);
  sigset_t signals;
  sigset_t mask;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGCHLD}) sigaddset(&signals, signal);
  sigprocmask(SIG_BLOCK, &signals, &mask);
  const pid_t watcher = getpid();
  const pid_t rank = fork();
  if (rank < 0) throw_errno("fork");
  if (rank == 0) become_rank(args.subspan(2), watcher, mask);
  const RankEnd end = watch(rank, signals);
  report_end(end, environment, args[0], args[1]);
  return end.exit_code;
}

}  // namespace tokamak::cli
