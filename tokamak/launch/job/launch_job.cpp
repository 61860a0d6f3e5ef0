#include "tokamak/launch/job/launch_job.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include "tokamak/comm/flight_file.h"
#include "tokamak/comm/launch_environment.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/launch/job/job_folder.h"
#include "tokamak/launch/job/launch_filter.h"
#include "tokamak/launch/job/launch_rank.h"
#include "tokamak/launch/job/liveness.h"
#include "tokamak/launch/job/mpirun.h"
#include "tokamak/train/run_signals.h"

namespace tokamak::launch {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;
using namespace std::chrono_literals;

constexpr auto kLook = 100ms;
/// Between repetitions of a request to stop: mpirun loses what comes before it has started its
/// ranks.
constexpr Seconds kRepeat = 500ms;
/// How long others may live on after a rank has failed, and after one has ended in order.
constexpr Seconds kFaultGrace = 3s;
constexpr Seconds kEndGrace = 60s;
/// How long another host may be silent; its heartbeat comes every 2 s.
constexpr Seconds kSilence = 8s;
/// How long mpirun may go on once all ranks have ended, to pass their last words on.
constexpr Seconds kPassing = 500ms;
/// How long output is awaited of processes that have been killed.
constexpr Seconds kDrain = 3s;

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = write(fd, text.data(), text.size());
    if (count < 0 && errno != EINTR) return;
    text.remove_prefix(static_cast<size_t>(std::max<ssize_t>(count, 0)));
  }
}

/// Looks after one attempt from its start to its end.
class Attendance {
 public:
  Attendance(const LaunchJob& job, const LaunchSignals& signals, const JobFolder& folder)
      : job_(job),
        signals_(signals),
        folder_(folder.path()),
        process_(job_words(job, folder.path()),
                 job.print_environment ? STDOUT_FILENO : STDERR_FILENO, job.hosts.empty()),
        liveness_(process_.id(), folder_, -1) {}

  /// Reads the stream to its end, or to the end of our patience.
  void run(const std::function<void(std::string_view)>& take) {
    std::string buffer(1 << 16, '\0');
    while (!is_drained()) {
      pollfd event{.fd = process_.output(), .events = POLLIN, .revents = 0};
      const timespec patience{.tv_sec = 0, .tv_nsec = std::chrono::nanoseconds(kLook).count()};
      const int num_ready = ppoll(&event, 1, &patience, &signals_.mask());
      advance_clock();
      pass_signals_on();
      look();
      if (num_ready <= 0) continue;
      const ssize_t count = read(process_.output(), buffer.data(), buffer.size());
      if (count <= 0) break;
      take(std::string_view(buffer).substr(0, static_cast<size_t>(count)));
    }
    for (const auto end = Clock::now() + kDrain; !process_.ended() && Clock::now() < end;) {
      std::this_thread::sleep_for(10ms);
    }
    if (!process_.ended()) process_.kill_group();
    read_ends();
  }

  void take_news(const RankNews& news) {
    if (news.kind == RankNews::Kind::kBegan) {
      const bool is_here = news.end.host == own_host_;
      begun_[news.rank] = is_here ? static_cast<pid_t>(news.end.process) : 0;
    }
    if (news.kind == RankNews::Kind::kEnded) add_end(news.rank, news.end);
    if (news.end.host != own_host_) heard_[news.end.host] = now_;
    if (news.kind == RankNews::Kind::kEnded) heard_.erase(news.end.host);
  }

  JobEnd end() {
    JobEnd end = end_;
    // mpirun may be killed while nobody takes the output of a job that is done.
    const bool is_done = have_all_ended() && std::ranges::all_of(end.ranks, [](const auto& rank) {
                           return rank.second.exit_code == 0;
                         });
    end.code = is_done ? 0 : process_.ended().value_or(128 + SIGKILL);
    end.was_stopped = signals_.num_stops() > 0;
    return end;
  }

  /// Returns the ranks of this host that are not gone yet.
  std::vector<pid_t> dying() const {
    std::vector<pid_t> all;
    for (const auto& [rank, end] : end_.ranks) {
      if (end.host == own_host_ && end.process > 0) all.push_back(static_cast<pid_t>(end.process));
    }
    return all;
  }

 private:
  /// Counts only time in which we ran, so that a job that was suspended as a whole, or whose output
  /// nobody took, has missed nothing.
  void advance_clock() {
    const auto wall = Clock::now();
    now_ += std::min<Seconds>(wall - last_wall_, 1s);
    last_wall_ = wall;
  }

  void pass_signals_on() {
    if (num_saves_ < signals_.num_saves() && have_all_begun()) {
      num_saves_ = signals_.num_saves();
      signal_watchers(SIGUSR1);
    }
    if (signals_.num_stops() > 1 && !killed_at_) end_job("", "");
    if (signals_.num_stops() == 0 || killed_at_ || now_ < next_stop_) return;
    signal_watchers(SIGUSR2);
    next_stop_ = now_ + kRepeat;
  }

  // An mpirun may lose a signal, or not pass it on: it goes to the watchers themselves where all of
  // them are here.
  void signal_watchers(int signal) {
    const bool are_here = have_all_begun() && std::ranges::all_of(begun_, [](const auto& watcher) {
                            return watcher.second > 0;
                          });
    if (!are_here) return process_.send(signal);
    for (const auto& [rank, watcher] : begun_) {
      if (end_.ranks.count(rank) == 0)
        sigqueue(watcher, signal, {.sival_int = signals_.last_stop()});
    }
  }

  // mpirun dies of SIGUSR1 until it starts ranks.
  bool have_all_begun() const { return static_cast<int64_t>(begun_.size()) == job_.num_ranks; }

  void look() {
    read_ends();
    if (process_.ended() && !killed_at_) killed_at_ = now_;
    if (killed_at_ || job_.print_environment) return;
    if (!have_all_begun() && !first_end_ && !first_fault_ &&
        now_ > Seconds(static_cast<double>(job_.start_seconds))) {
      return end_job(fmt::format("{} of {} ranks were not started within {} s",
                                 job_.num_ranks - static_cast<int64_t>(begun_.size()),
                                 job_.num_ranks, job_.start_seconds),
                     "");
    }
    if (const std::string why = liveness_.look(); !why.empty()) return end_job("mpirun " + why, "");
    for (const auto& [host, at] : heard_) {
      if (now_ - at < kSilence) continue;
      return end_job(fmt::format("{} has not been heard of for {} s", host, kSilence.count()),
                     host);
    }
    if (first_fault_ && have_all_ended() && now_ - last_end_ > kPassing) return end_job("", "");
    if (first_fault_ && now_ - *first_fault_ > kFaultGrace) return end_job("", "");
    if (first_end_ && now_ - *first_end_ > kEndGrace) {
      if (have_all_ended()) return end_job("", "");
      end_job(fmt::format("{} of {} ranks have not ended {} s after the first",
                          job_.num_ranks - static_cast<int64_t>(end_.ranks.size()), job_.num_ranks,
                          kEndGrace.count()),
              "");
    }
  }

  /// mpirun may wait for ever, for a host that does not answer or in a deadlock of its own. Its
  /// watchers see that it is gone and end their ranks.
  void end_job(const std::string& why, const std::string& host) {
    end_.reason = why;
    end_.host = host;
    killed_at_ = now_;
    process_.kill_group();
  }

  bool have_all_ended() const { return static_cast<int64_t>(end_.ranks.size()) == job_.num_ranks; }

  bool is_drained() const { return killed_at_ && now_ - *killed_at_ > kDrain; }

  void read_ends() {
    std::error_code code;
    std::filesystem::directory_iterator entry(folder_, code);
    for (; !code && entry != std::filesystem::directory_iterator(); entry.increment(code)) {
      const std::string name = entry->path().filename();
      if (name.rfind("end-", 0) != 0 || name.find('.') != std::string::npos) continue;
      const int64_t rank = std::atoll(name.c_str() + 4);
      if (end_.ranks.count(rank) > 0) continue;
      if (const auto end = read_rank_end(folder_, rank)) add_end(rank, *end);
    }
  }

  void add_end(int64_t rank, const RankEnd& end) {
    end_.ranks.emplace(rank, end);
    last_end_ = now_;
    const bool is_orderly = end.exit_code == 0 || end.exit_code == kExitStopped;
    auto& first = is_orderly ? first_end_ : first_fault_;
    if (!first) first = now_;
    if (end.exit_code > 128 || !end.reason.empty()) end_others();
  }

  // Survivors of a death, or of a rank that hung, have nothing to say that its watcher does not
  // know, and mpirun may leave it to them to find out.
  void end_others() {
    if (std::exchange(have_ended_others_, true)) return;
    for (const auto& [rank, watcher] : begun_) {
      if (watcher > 0 && end_.ranks.count(rank) == 0) kill(watcher, job_lost_signal());
    }
  }

  const LaunchJob& job_;
  const LaunchSignals& signals_;
  std::filesystem::path folder_;
  std::string own_host_ = read_launch_environment().host;
  JobProcess process_;
  Liveness liveness_;  ///< of the process
  JobEnd end_;
  Seconds now_{0};
  Clock::time_point last_wall_ = Clock::now();
  Seconds next_stop_{0};
  int num_saves_ = signals_.num_saves();  ///< an earlier attempt's are not this one's
  std::map<int64_t, pid_t> begun_;        ///< the watchers by rank; 0: on another host
  std::map<std::string, Seconds> heard_;  ///< by other host, until a rank of it has ended
  std::optional<Seconds> first_fault_;
  std::optional<Seconds> first_end_;
  Seconds last_end_{0};
  bool have_ended_others_ = false;
  std::optional<Seconds> killed_at_;  ///< or ended
};

/// Returns lines of ranks in rank order.
std::string sort_by_rank(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t first = 0; first < text.size();) {
    const size_t end = std::min(text.find('\n', first), text.size() - 1) + 1;
    lines.push_back(text.substr(first, end - first));
    first = end;
  }
  const auto rank_of = [](const std::string& line) { return std::atoi(line.c_str() + 5); };
  std::ranges::stable_sort(
      lines, [&](const std::string& a, const std::string& b) { return rank_of(a) < rank_of(b); });
  std::string sorted;
  for (const std::string& line : lines) sorted += line;
  return sorted;
}

Verdict print_environments(Attendance& attendance) {
  std::string text;
  attendance.run([&](std::string_view part) { text += part; });
  write_all(STDOUT_FILENO, sort_by_rank(text));
  return {.exit_code = attendance.end().code};
}

void report(const Verdict& verdict, const LaunchJob& job, const std::filesystem::path& folder) {
  if (verdict.text.empty()) return;
  std::string text = verdict.text;
  const int num_ranks = static_cast<int>(job.num_ranks);
  const auto flights =
      num_ranks > 1 ? describe_flights(folder, num_ranks) : std::vector<std::string>();
  if (!flights.empty()) text += "; the last collectives:";
  for (const std::string& line : flights) text += "\n  " + line;
  fmt::print(stderr, "tokamak launch: {}\n", text);
}

}  // namespace

Verdict run_job(const LaunchJob& job, const LaunchSignals& signals) {
  const JobFolder folder;
  Attendance attendance(job, signals, folder);
  if (job.print_environment) return print_environments(attendance);
  LaunchFilter filter([&](const RankNews& news) { attendance.take_news(news); });
  attendance.run([&](std::string_view part) { write_all(STDERR_FILENO, filter.pass(part)); });
  write_all(STDERR_FILENO, filter.finish());
  if (signals.num_stops() > 1)
    return {.exit_code = 128 + signals.last_stop(), .dying = attendance.dying()};
  Verdict verdict = judge(attendance.end());
  verdict.dying = attendance.dying();
  report(verdict, job, folder.path());
  return verdict;
}

}  // namespace tokamak::launch
