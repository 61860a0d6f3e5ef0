#include "tokamak/launch/job/liveness.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <vector>

#include <fmt/format.h>
#include <sys/wait.h>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/host.h"

namespace tokamak::launch {
namespace {

using namespace std::chrono_literals;

constexpr int64_t kStoppedLimit = std::chrono::nanoseconds(5s).count();
constexpr int64_t kSilentLimit = std::chrono::nanoseconds(8s).count();
/// A longer pause between two looks means that the watcher was stopped too, as a whole job is that
/// Slurm suspends.
constexpr int64_t kLongestPause = std::chrono::nanoseconds(1s).count();

int64_t now_ns() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

char state_of(pid_t process) {
  const auto words = process_stat(process);
  return words.empty() ? '?' : words[0][0];
}

}  // namespace

std::optional<int> death_by_signal(pid_t process) {
  constexpr size_t kFlags = 6;
  constexpr size_t kExitCode = 49;
  constexpr uint64_t kExiting = 0x4;  // PF_EXITING
  const auto words = process_stat(process);
  if (words.size() <= kExitCode) return std::nullopt;
  const bool is_exiting = (std::strtoull(words[kFlags].c_str(), nullptr, 10) & kExiting) != 0;
  const int status = std::atoi(words[kExitCode].c_str());
  if (!is_exiting || !WIFSIGNALED(status)) return std::nullopt;
  return 128 + WTERMSIG(status);
}

Liveness::Liveness(pid_t process, std::filesystem::path folder, int rank)
    : process_(process), folder_(std::move(folder)), rank_(rank), last_look_ns_(now_ns()) {}

std::string Liveness::look() {
  const int64_t now = now_ns();
  const int64_t passed = std::min(now - last_look_ns_, kLongestPause);
  last_look_ns_ = now;
  const char state = state_of(process_);
  stopped_ns_ = state == 'T' ? stopped_ns_ + passed : 0;
  const FlightPage* const record = page();
  const uint64_t beats = record == nullptr ? 0 : record->beats.load();
  const bool is_silent = beats > 0 && beats == last_beats_ && state != 't';
  silent_ns_ = is_silent ? silent_ns_ + passed : 0;
  last_beats_ = beats;
  if (stopped_ns_ > kStoppedLimit)
    return fmt::format("was stopped (SIGSTOP) for {} s", stopped_ns_ / std::nano::den);
  if (silent_ns_ > kSilentLimit)
    return fmt::format("did not run for {} s", silent_ns_ / std::nano::den);
  return "";
}

int64_t Liveness::step() {
  const FlightPage* const record = page();
  return record == nullptr ? -1 : record->step.load();
}

FlightPage* Liveness::page() {
  if (file_) return &file_->page();
  const auto path = folder_ / fmt::format("rank-{}", rank_);
  std::error_code code;
  if (std::filesystem::file_size(path, code) != sizeof(FlightPage)) return nullptr;
  try {
    file_ = FlightFile::open(folder_, rank_);
  } catch (const SystemError&) {
    return nullptr;
  }
  return &file_->page();
}

}  // namespace tokamak::launch
