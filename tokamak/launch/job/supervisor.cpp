#include "tokamak/launch/job/supervisor.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tokamak/comm/launch_environment.h"
#include "tokamak/core/error.h"
#include "tokamak/core/host.h"
#include "tokamak/launch/job/job_folder.h"
#include "tokamak/launch/network/probe_network.h"
#include "tokamak/launch/process/reachable.h"
#include "tokamak/train/predecessor.h"
#include "tokamak/train/run_signals.h"
#include "tokamak/train/state/step_memory.h"

namespace tokamak::launch {
namespace {

using namespace std::chrono_literals;

constexpr int kMostAlike = 3;
constexpr auto kLongestRestartPause = 30s;
/// How long the launcher awaits ranks that have died and are not gone.
constexpr auto kLastBurial = 10s;

/// Returns false if the user asks to stop meanwhile.
bool pause_before_restart(int num_without_progress, const LaunchSignals& signals) {
  std::chrono::milliseconds pause = 0s;
  if (num_without_progress > 1) pause = 1s * (1 << std::min(num_without_progress - 2, 5));
  const auto end =
      std::chrono::steady_clock::now() + std::min<decltype(pause)>(pause, kLongestRestartPause);
  while (!signals.must_stop() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(50ms);
  }
  return !signals.must_stop();
}

void leave_out(Hosts& hosts, const Verdict& verdict) {
  const auto add_why = [&](const std::string& host, int failures, const char* why) {
    if (!hosts.add_failure(host, failures)) return;
    fmt::print(stderr, "tokamak launch: {} is left out from here on: {}\n", host, why);
  };
  const auto add = [&](const std::string& host, bool is_lost) {
    add_why(host, is_lost ? 2 : 1, is_lost ? "it does not answer" : "it has failed twice");
  };
  std::istringstream named(verdict.leave_out);
  for (std::string host; std::getline(named, host, ',');)
    add_why(host, 2, "the check of the hosts names it");
  if (!verdict.leave_out.empty()) return;
  if (!verdict.host.empty()) return add(verdict.host, verdict.host_is_lost);
  // Slurm starts ranks without a shell, and takes nodes that are down out of the allocation itself.
  if (hosts.empty() || std::getenv("SLURM_JOB_ID") != nullptr) return;
  for (const std::string& host : unreachable_hosts(hosts.names())) add(host, true);
}

/// Makes NCCL and MPI take the fastest interface that connects the hosts, before they start there.
class NetworkChoice {
 public:
  /// `lines` are those of a hostfile.
  void choose(const std::vector<std::string>& lines) {
    if (is_users_ || lines.size() < 2 || lines == lines_) return;
    lines_ = lines;
    std::vector<std::string> hosts;
    for (const std::string& line : lines) {
      std::string host;
      std::istringstream(line) >> host;
      hosts.push_back(host);
    }
    const NetworkProbe probe = probe_hosts(hosts);
    const auto interface =
        probe.hosts.size() == hosts.size() ? fastest_common(probe) : std::nullopt;
    for (const auto& [name, value] : interface_variables(interface ? interface->name : "")) {
      // Open MPI's own daemons talk to this host too, which may be none of the job's.
      const bool is_set = interface && (name != kDaemonVariable || is_here(interface->name));
      is_set ? setenv(name.c_str(), value.c_str(), 1) : unsetenv(name.c_str());
    }
    if (interface) {
      fmt::print(stderr,
                 "tokamak launch: network: {} ({}) connects all {} hosts, found in {:.1f} s\n",
                 interface->name, speed_text(*interface), hosts.size(), probe.seconds);
    } else {
      fmt::print(stderr,
                 "tokamak launch: network: no interface connects all hosts ({} of {} answer), so "
                 "the choice is NCCL's and MPI's\n{}",
                 probe.hosts.size(), hosts.size(), to_table(probe));
    }
  }

 private:
  static constexpr const char* kDaemonVariable = "OMPI_MCA_oob_tcp_if_include";

  static bool is_here(const std::string& name) {
    const auto here = list_interfaces();
    return std::ranges::any_of(here,
                               [&](const Interface& interface) { return interface.name == name; });
  }

  bool is_users_ = has_chosen_interface();
  std::vector<std::string> lines_;
};

/// Tells ranks which attempt of which job they are, so that a process of an earlier one that still
/// lives loses the run's folder to them.
void name_attempt(int64_t restart) {
  const std::string slurm = environment_variable("SLURM_JOB_ID");
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::string job =
      !slurm.empty() ? fmt::format("Slurm job {}", slurm)
                     : fmt::format("launcher {} of second {} on {}", getpid(),
                                   std::chrono::duration_cast<std::chrono::seconds>(now).count(),
                                   read_launch_environment().host);
  const int64_t earlier = std::atoll(environment_variable("SLURM_RESTART_COUNT").c_str());
  constexpr int64_t kMostRestarts = 10'000;
  if (restart == 0) setenv("TOKAMAK_JOB", job.c_str(), 0);
  setenv("TOKAMAK_RESTART", std::to_string(earlier * kMostRestarts + restart).c_str(), 1);
}

/// Ranks that no watcher waits for any more, because they take long to die.
class DyingRanks {
 public:
  /// Those that lose their watchers become our children.
  DyingRanks() { prctl(PR_SET_CHILD_SUBREAPER, 1); }

  void add(const std::vector<pid_t>& ranks) {
    ranks_.insert(ranks_.end(), ranks.begin(), ranks.end());
  }

  /// Forgets those that are gone.
  void bury() {
    std::erase_if(ranks_, [](pid_t rank) {
      const pid_t waited = waitpid(rank, nullptr, WNOHANG);
      return waited == rank || (waited < 0 && kill(rank, 0) != 0);
    });
  }

  void await(std::chrono::milliseconds patience) {
    const auto end = std::chrono::steady_clock::now() + patience;
    for (bury(); !ranks_.empty() && std::chrono::steady_clock::now() < end; bury())
      std::this_thread::sleep_for(20ms);
  }

  const std::vector<pid_t>& ranks() const { return ranks_; }

 private:
  std::vector<pid_t> ranks_;
};

}  // namespace

int CrashLoop::add(const Verdict& verdict) {
  const bool is_alike =
      verdict.exit_code == code_ && verdict.step == step_ && verdict.leave_out == leave_out_;
  num_alike_ = is_alike ? num_alike_ + 1 : 1;
  num_without_progress_ = verdict.step > step_ ? 1 : num_without_progress_ + 1;
  code_ = verdict.exit_code;
  step_ = verdict.step;
  leave_out_ = verdict.leave_out;
  return num_alike_;
}

namespace {

int supervise_with(LaunchJob job, Hosts hosts, int64_t max_restarts, const LaunchSignals& signals,
                   DyingRanks& dying) {
  CrashLoop loop;
  NetworkChoice network;
  std::optional<JobFolder> memory;  // of all attempts
  if (job.keeps_last_step) {
    memory.emplace();
    setenv(kStepMemoryVariable, memory->path().c_str(), 1);
  }
  for (int64_t restart = 1;; ++restart) {
    const auto chosen = hosts.choose(job.num_ranks);
    if (!chosen) {
      fmt::print(stderr, "tokamak launch: too few hosts are left for {} ranks without {}\n",
                 job.num_ranks, fmt::join(hosts.excluded(), ", "));
      return static_cast<int>(ExitCode::kTryAgain);
    }
    job.hosts = *chosen;
    if (!job.print_environment) network.choose(job.hosts);
    name_attempt(restart - 1);
    const Verdict verdict = run_job(job, signals);
    dying.add(verdict.dying);
    if (!is_machine_fault(verdict.exit_code) || max_restarts == 0 || signals.must_stop())
      return verdict.exit_code;
    if (loop.add(verdict) == kMostAlike) {
      fmt::print(
          stderr,
          "tokamak launch: the job has ended {} times with exit code {}{}; it is not started "
          "again\n",
          kMostAlike, verdict.exit_code,
          verdict.step > 0 ? fmt::format(" after step {}", verdict.step)
                           : " before its first step");
      return kExitCrashLoop;
    }
    leave_out(hosts, verdict);
    if (restart > max_restarts) return verdict.exit_code;
    if (!pause_before_restart(loop.num_without_progress(), signals)) return kExitStopped;
    dying.bury();
    setenv(kPredecessorsVariable, fmt::format("{}", fmt::join(dying.ranks(), " ")).c_str(), 1);
    fmt::print(stderr, "tokamak launch: restart {} of {}\n", restart, max_restarts);
  }
}

}  // namespace

int supervise(LaunchJob job, Hosts hosts, int64_t max_restarts, const LaunchSignals& signals) {
  DyingRanks dying;
  const int code = supervise_with(std::move(job), std::move(hosts), max_restarts, signals, dying);
  dying.await(kLastBurial);
  return code;
}

}  // namespace tokamak::launch
