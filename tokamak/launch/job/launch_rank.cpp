#include "tokamak/launch/job/launch_rank.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <optional>

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tokamak/comm/flight_file.h"
#include "tokamak/comm/launch_environment.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/usable_cores.h"
#include "tokamak/launch/cluster/findings.h"
#include "tokamak/launch/cluster/preflight.h"
#include "tokamak/launch/job/job_folder.h"
#include "tokamak/launch/job/liveness.h"
#include "tokamak/launch/job/rank_end.h"
#include "tokamak/train/run_signals.h"

namespace tokamak::launch {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr std::string_view kVerb = "launch-rank";
constexpr std::string_view kPrintEnvironment = "--print-env";
constexpr int kCannotStart = 127;
constexpr auto kRankLookInterval = 100ms;
/// How long a rank may go on to report its own error after mpirun has said that the job is lost.
constexpr auto kLastWords = 300ms;
/// How long a killed rank may take to be gone; one in an uninterruptible call may take for ever.
constexpr auto kBurial = 3s;
/// How often the first rank of each host tells the launcher that its host is running.
constexpr auto kHeartbeat = 2s;

/// Splits this host's cores among its ranks unless the user has decided.
void share_threads(const LaunchEnvironment& environment) {
  const int threads = std::max(1, usable_cores() / environment.local_size);
  setenv("OMP_NUM_THREADS", std::to_string(threads).c_str(), 0);
}

[[noreturn]] void become_rank(std::span<const std::string> words, pid_t watcher,
                              const sigset_t& mask) {
  // The rank gets its own process group, because mpirun signals its child's whole group and the
  // watcher passes signals on.
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != watcher) _exit(kCannotStart);
  // A signal that comes before `train` has begun waits for it: no request is lost, no rank dies of
  // it.
  if (words[0] != "train") sigprocmask(SIG_SETMASK, &mask, nullptr);
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

/// Looks after one rank until it has ended, or cannot be ended.
class Watch {
 public:
  Watch(pid_t rank, const LaunchEnvironment& environment, const fs::path& folder, bool is_remote)
      : rank_(rank),
        environment_(environment),
        is_remote_(is_remote),
        liveness_(rank, folder, environment.rank) {
    end_.host = environment.host;
  }

  RankEnd run(const sigset_t& signals) {
    tell(RankNews::Kind::kBegan);
    while (!has_ended()) {
      siginfo_t info{};
      const timespec patience{.tv_sec = 0,
                              .tv_nsec = std::chrono::nanoseconds(kRankLookInterval).count()};
      const int signal = sigtimedwait(&signals, &info, &patience);
      take(signal, info);
      if (has_ended()) break;
      if (getppid() != parent_) end_rank("", Clock::now());
      if (kill_at_ && Clock::now() >= *kill_at_) kill(rank_, SIGKILL);
      if (const std::string why = liveness_.look(); !why.empty()) end_rank(why, Clock::now());
      if (Clock::now() >= next_beat_) tell(RankNews::Kind::kAlive);
    }
    return end_;
  }

 private:
  /// The launcher itself says when another rank has died. mpirun passes on SIGUSR2, by which the
  /// launcher says that the user wants the job to stop, and SIGUSR1 as it came. SIGTERM from mpirun
  /// itself means that the job is lost; from anyone else it is a request to stop that others of the
  /// job have got as well.
  void take(int signal, const siginfo_t& info) {
    if (signal == SIGUSR1) kill(rank_, SIGUSR1);
    if (signal == job_lost_signal()) {
      end_.was_told = true;
      return end_rank("", Clock::now() + kLastWords);
    }
    if (signal != SIGTERM && signal != SIGINT && signal != SIGHUP && signal != SIGUSR2) return;
    if (signal != SIGUSR2 && info.si_pid == parent_) {
      end_.was_told = true;
      return end_rank("", Clock::now() + kLastWords);
    }
    if (std::exchange(is_stopping_, true)) return;
    sigqueue(rank_, SIGTERM, {.sival_int = signal_meant(info)});
  }

  void end_rank(const std::string& why, Clock::time_point when) {
    if (kill_at_) return;
    kill_at_ = when;
    end_.reason = why;
  }

  bool has_ended() {
    int status = 0;
    if (waitpid(rank_, &status, WNOHANG) == rank_) {
      end_.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    } else if (const auto death = death_by_signal(rank_)) {
      end_.exit_code = *death;
      end_.process = rank_;
    } else if (kill_at_ && Clock::now() > *kill_at_ + kBurial) {
      end_.exit_code = 128 + SIGKILL;
      end_.process = rank_;
      end_.reason += " and cannot be killed";
    } else {
      return false;
    }
    if (!end_.reason.empty()) end_.exit_code = static_cast<int>(ExitCode::kTryAgain);
    end_.at_ns = std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
    end_.step = liveness_.step();
    return true;
  }

  /// From other hosts than the launcher's, and the heartbeat from one rank of each.
  void tell(RankNews::Kind kind) {
    next_beat_ = Clock::now() + kHeartbeat;
    const bool is_begin =
        kind == RankNews::Kind::kBegan;  // which the launcher awaits of every rank
    if (!is_remote_ && !is_begin) return;
    if (kind == RankNews::Kind::kAlive && environment_.local_rank != 0) return;
    RankEnd end = end_;
    end.process = getpid();
    fmt::print(stderr, "{}", to_line({.kind = kind, .rank = environment_.rank, .end = end}));
  }

  pid_t rank_;
  const LaunchEnvironment& environment_;
  bool is_remote_;
  Liveness liveness_;
  pid_t parent_ = getppid();
  RankEnd end_;
  bool is_stopping_ = false;
  std::optional<Clock::time_point> kill_at_;
  Clock::time_point next_beat_;
};

/// On the launcher's host the end goes to the job's folder; elsewhere it is printed.
void report_end(const RankEnd& end, const LaunchEnvironment& environment, const fs::path& folder,
                bool is_remote) {
  if (!is_remote) return write_rank_end(folder, environment.rank, end);
  const auto flight = folder / fmt::format("rank-{}", environment.rank);
  const bool is_fault = end.exit_code != 0 && end.exit_code != kExitStopped;
  if (is_fault && path_exists(flight)) {
    fmt::print(stderr, "  {}\n", describe(FlightFile::open(folder, environment.rank).page()));
  }
  fmt::print(stderr, "{}",
             to_line({.kind = RankNews::Kind::kEnded, .rank = environment.rank, .end = end}));
}

/// A library that loses its connection to mpirun ends a rank with a code of its own. Of a program
/// that is not ours we know no codes.
bool is_foreign(int exit_code, const std::string& word) {
  const std::array known{static_cast<int>(ExitCode::kDone),
                         static_cast<int>(ExitCode::kUserError),
                         static_cast<int>(ExitCode::kDiverged),
                         static_cast<int>(ExitCode::kBug),
                         static_cast<int>(ExitCode::kTryAgain),
                         kExitStopped,
                         kCannotStart};
  return word.find('/') == std::string::npos && exit_code <= 128 &&
         std::ranges::find(known, exit_code) == known.end();
}

/// A run that a signal has stopped ended in order; mpirun would take its code for a failure and
/// kill the ranks that are a moment behind.
int code_for_mpirun(int exit_code) {
  return exit_code == kExitStopped ? 0 : exit_code;
}

}  // namespace

int job_lost_signal() {
  return SIGRTMIN;
}

std::vector<std::string> watcher_words(const fs::path& folder, const std::string& host,
                                       bool print_environment) {
  std::vector<std::string> words{fs::read_symlink("/proc/self/exe"), std::string(kVerb), folder,
                                 host};
  if (print_environment) words.emplace_back(kPrintEnvironment);
  return words;
}

int run_launch_rank(std::span<const std::string> args) {
  TOK_CHECK(args.size() >= 3, "tokamak {} is for tokamak launch", kVerb);
  sigset_t signals;
  sigset_t mask;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD, job_lost_signal()})
    sigaddset(&signals, signal);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  sigemptyset(&mask);
  std::signal(SIGPIPE, SIG_IGN);
  const LaunchEnvironment environment = read_launch_environment();
  share_threads(environment);
  if (args[2] == kPrintEnvironment) {
    fmt::print("{}, OMP_NUM_THREADS={}\n", to_string(environment), std::getenv("OMP_NUM_THREADS"));
    return 0;
  }
  const fs::path folder = args[0];
  const bool is_remote = environment.host != args[1];
  if (is_remote) {
    if (environment.local_rank == 0) sweep_job_folders();
    make_folders(folder);
  }
  setenv(kFlightFolderVariable, folder.c_str(), 1);
  const fs::path leave_out = folder / fmt::format("leave-out-{}", environment.rank);
  setenv(kLeaveOutVariable, leave_out.c_str(), 1);
  const pid_t watcher = getpid();
  RankEnd end;
  {
    const FolderLock lock(folder);
    const pid_t rank = fork();
    if (rank < 0) throw_errno("fork");
    if (rank == 0) become_rank(args.subspan(2), watcher, mask);
    end = Watch(rank, environment, folder, is_remote).run(signals);
    if (path_exists(leave_out)) end.leave_out = hosts_in_settings(read_file(leave_out));
    if (is_foreign(end.exit_code, args[2])) end.exit_code = static_cast<int>(ExitCode::kTryAgain);
    report_end(end, environment, folder, is_remote);
  }
  if (is_remote) remove_if_unused(folder);
  return code_for_mpirun(end.exit_code);
}

}  // namespace tokamak::launch
