#include "tokamak/comm/watchdog.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include <unistd.h>

#include "tokamak/comm/launch_environment.h"
#include "tokamak/core/error.h"

namespace tokamak {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kLookInterval = 500ms;
/// A longer pause between two looks means that the whole process was stopped.
constexpr SilenceRule::Seconds kLongestPause{2};
/// Steps after which the longest silence of a run is known: the first ones load libraries.
constexpr int64_t kFirstSteps = 3;

const char* words_of(RankActivity activity) {
  switch (activity) {
    case RankActivity::kStarting:
      return "while starting";
    case RankActivity::kComputing:
      return "in a step";
    case RankActivity::kValidating:
      return "in validation";
    case RankActivity::kFiles:
      return "in a call to the file system";
    case RankActivity::kEnding:
      return "at its end";
  }
  return "";
}

bool is_at_files(RankActivity activity) {
  return activity == RankActivity::kStarting || activity == RankActivity::kFiles;
}

}  // namespace

// A call that has not returned has a limit of its own.
SilenceRule::Seconds SilenceRule::limit() const {
  const bool is_in_call = is_at_files(last_.activity) && last_.file_call.number != 0;
  const Seconds least = is_in_call ? limits_.file_call + kLeast : Seconds(0);
  switch (last_.activity) {
    case RankActivity::kStarting:
      return std::max(limits_.start, least);
    case RankActivity::kComputing:
      if (last_.step < first_step_ + kFirstSteps) return limits_.start;
      return std::max(std::min(limits_.progress, std::max(kLeast, kTimesLongest * longest_)),
                      kTimesLongestAtLeast * longest_);
    case RankActivity::kValidating:
    case RankActivity::kFiles:
    case RankActivity::kEnding:
      return std::max({limits_.progress, kTimesLongest * longest_, least});
  }
  return limits_.start;
}

bool SilenceRule::is_call_stuck(const UnreturnedCall& call, Seconds passed) {
  const bool is_same = call.number != 0 && call.number == last_.file_call.number;
  in_call_ = is_same ? in_call_ + passed : Seconds(0);
  return in_call_ > limits_.file_call;
}

std::string SilenceRule::look(const Sample& sample, Seconds passed) {
  if (is_call_stuck(sample.file_call, passed))
    return fmt::format("{} has not returned for {:.0f} s (checkpoint.timeout_seconds)",
                       sample.file_call.text, in_call_.count());
  const bool is_same = sample.activity == last_.activity && sample.ticks == last_.ticks;
  const bool has_got_on =
      is_at_files(sample.activity) && sample.num_file_calls != last_.num_file_calls;
  silence_ += passed;
  if (!is_same && last_.activity == RankActivity::kComputing && !last_.is_in_collective) {
    longest_ = std::max(longest_, silence_);
  }
  if (!is_same || has_got_on || sample.is_in_collective) silence_ = Seconds(0);
  last_ = sample;
  if (first_step_ < 0 && sample.activity == RankActivity::kComputing) first_step_ = sample.step;
  if (silence_ <= limit()) return "";
  return fmt::format("no progress for {:.0f} s {}{}", silence_.count(), words_of(sample.activity),
                     sample.step > 0 ? fmt::format(", after step {}", sample.step) : "");
}

Watchdog::Watchdog(SilenceLimits limits) {
  rule_.set_limits(limits);
  thread_ = std::thread([this] { run(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Watchdog::watch(World& world) {
  const std::lock_guard lock(mutex_);
  world_ = &world;
}

void Watchdog::set_limits(SilenceLimits limits) {
  const std::lock_guard lock(mutex_);
  rule_.set_limits(limits);
}

void Watchdog::leave() {
  const std::lock_guard lock(mutex_);
  if (world_ != nullptr) world_->flights().beats = 0;  // nobody counts from here on
  world_ = nullptr;
  has_left_ = true;
}

SilenceRule::Sample Watchdog::sample() const {
  if (world_ == nullptr) return {};
  FlightPage& page = world_->flights();
  page.beats.fetch_add(1);
  return {.activity = page.activity,
          .ticks = page.ticks,
          .step = page.step,
          .num_file_calls = num_file_calls(),
          .is_in_collective = page.is_in_collective() && !page.is_awaited,
          .file_call = oldest_file_call()};
}

void Watchdog::run() {
  std::unique_lock lock(mutex_);
  auto last = Clock::now();
  while (!is_ending_) {
    wake_.wait_for(lock, kLookInterval);
    if (is_ending_) return;
    const auto now = Clock::now();
    const auto passed = std::min<SilenceRule::Seconds>(now - last, kLongestPause);
    last = now;
    const std::string why = rule_.look(sample(), passed);
    if (!why.empty()) end(why);
  }
}

// The main thread may be inside MPI, which no other thread may call then.
void Watchdog::end(const std::string& why) const {
  if (world_ != nullptr) {
    world_->flights().phase = RankPhase::kFailed;
    fmt::print(stderr, "tokamak: machine: rank {}: {}; the last collectives:{}\n", world_->rank(),
               why, world_->describe_flights());
  } else {
    const LaunchEnvironment launched = read_launch_environment();
    fmt::print(stderr,
               "tokamak: machine: rank {} of {} on {}: {} has not returned, so not all ranks are "
               "there or they cannot reach each other (comm.init_timeout_seconds): {}\n",
               launched.rank, launched.world_size, launched.host,
               has_left_ ? "MPI_Finalize" : "MPI_Init", why);
  }
  _exit(static_cast<int>(ExitCode::kTryAgain));
}

}  // namespace tokamak
