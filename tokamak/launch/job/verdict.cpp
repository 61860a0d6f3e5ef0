#include "tokamak/launch/job/verdict.h"

#include <csignal>
#include <cstring>
#include <tuple>

#include <fmt/format.h>

#include "tokamak/core/error.h"
#include "tokamak/train/run_signals.h"

namespace tokamak::launch {
namespace {

constexpr int kUserError = static_cast<int>(ExitCode::kUserError);
constexpr int kDiverged = static_cast<int>(ExitCode::kDiverged);
constexpr int kBug = static_cast<int>(ExitCode::kBug);
constexpr int kTryAgain = static_cast<int>(ExitCode::kTryAgain);

struct BlamedRank {
  int64_t rank = 0;
  const RankEnd* end = nullptr;
};

std::string describe_end(const BlamedRank& blamed) {
  const RankEnd& end = *blamed.end;
  const std::string who = fmt::format("rank {} on {}", blamed.rank, end.host);
  if (!end.reason.empty()) return who + " " + end.reason;
  if (end.exit_code > 128) {
    return fmt::format("{} died of signal {} ({})", who, end.exit_code - 128,
                       strsignal(end.exit_code - 128));
  }
  return fmt::format("{} ended {}with exit code {}", who, end.exit_code == 0 ? "early " : "",
                     end.exit_code);
}

/// Smaller is worse.
int order_of(const RankEnd& end) {
  if (!end.reason.empty()) return 0;
  if (end.exit_code > 128) return end.exit_code == 128 + SIGPIPE ? 3 : 0;
  if (end.exit_code == kTryAgain) return 2;
  if (end.exit_code == kExitStopped) return 4;
  return end.exit_code == 0 ? 5 : 1;
}

/// Returns the worst among the ranks that ended by themselves.
std::optional<BlamedRank> find_worst(const JobEnd& job) {
  std::optional<BlamedRank> worst;
  const auto key = [](const RankEnd& end) { return std::tuple(order_of(end), end.at_ns); };
  for (const auto& [rank, end] : job.ranks) {
    if (end.was_told || (worst && key(*worst->end) <= key(end))) continue;
    worst = BlamedRank{.rank = rank, .end = &end};
  }
  return worst;
}

/// mpirun's own code is that of the first rank to fail, also on another host; codes that Tokamak
/// does not use mean that mpirun had trouble with the machine.
int code_of_mpirun(int code) {
  const bool is_of_rank =
      code == kUserError || code == kDiverged || code == kBug || (code > 128 && code <= 128 + 64);
  return is_of_rank ? code : kTryAgain;
}

int exit_code_of(const JobEnd& job, const std::optional<BlamedRank>& worst) {
  const int code = worst ? worst->end->exit_code : 0;
  if (code != 0 && code != kExitStopped) return code;
  if (!job.reason.empty()) return kTryAgain;
  if (code == kExitStopped) return kExitStopped;
  if (job.code == 0) return 0;
  return job.was_stopped ? kExitStopped : code_of_mpirun(job.code);
}

}  // namespace

bool is_machine_fault(int exit_code) {
  return exit_code > 128 || exit_code == kTryAgain;
}

Verdict judge(const JobEnd& job) {
  const auto worst = find_worst(job);
  Verdict verdict{
      .exit_code = exit_code_of(job, worst), .host = job.host, .host_is_lost = !job.host.empty()};
  if (worst && order_of(*worst->end) < 4) {
    // One that lost its peers says nothing about its own host.
    if (job.host.empty() && order_of(*worst->end) == 0) verdict.host = worst->end->host;
    verdict.step = worst->end->step;
  }
  for (const auto& [rank, end] : job.ranks) {
    if (!end.leave_out.empty()) verdict.leave_out = end.leave_out;
  }
  if (!verdict.leave_out.empty()) return verdict;  // which the rank has said
  if (!is_machine_fault(verdict.exit_code) && verdict.exit_code != kBug) return verdict;
  if (worst && job.host.empty() && (job.reason.empty() || order_of(*worst->end) < 4)) {
    verdict.text = describe_end(*worst);
  } else {
    verdict.text =
        job.reason.empty() ? fmt::format("mpirun ended with exit code {}", job.code) : job.reason;
  }
  return verdict;
}

}  // namespace tokamak::launch
