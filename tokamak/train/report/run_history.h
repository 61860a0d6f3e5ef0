// What the files of a run's folder tell of it: metrics.jsonl, validation.jsonl, events.jsonl.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace tokamak {

/// The numbers of a line of metrics.jsonl that pages show.
enum class Metric : uint8_t {
  kLoss,
  kGradNorm,
  kLr,
  kTps,
  kTflops,
  kMfu,
  kMemory,
  kStepTime,
  kData,
  kForward,
  kBackward,
  kExposedComm,
  kOptimizer,
  kCheckpoint,
};
inline constexpr size_t kNumMetrics = 14;

struct LoggedStep {
  int64_t step = 0;
  int64_t tokens_seen = 0;
  std::array<double, kNumMetrics> values{};  ///< not a number where unknown

  double operator[](Metric metric) const { return values[static_cast<size_t>(metric)]; }
};

enum class RunEventKind : uint8_t {
  kStart,
  kRestart,
  kSave,
  kFailedSave,
  kBadStep,
  kWarning,
  kEnd
};
inline constexpr size_t kNumRunEventKinds = 7;

/// Returns "start", "bad step".
std::string_view name_of(RunEventKind kind);

struct RunEvent {
  RunEventKind kind = RunEventKind::kWarning;
  int64_t step = 0;
  std::string time;  ///< as the file has it; may be empty
  std::string text;
};

struct RunHistory {
  std::string name;
  std::vector<LoggedStep> steps;                       ///< in the order of steps, each once
  std::vector<std::pair<int64_t, double>> validation;  ///< step and loss
  std::vector<RunEvent> events;                        ///< in the order in which they happened
  int64_t world_size = 0;                              ///< of the last step; 0 where no line says
  std::string job;                                     ///< the scheduler's id, or empty
  std::vector<std::string> notes;                      ///< what in the files could not be used
};

/// Whether the folder is a run's: it has metrics.jsonl.
bool is_run_folder(const std::filesystem::path& folder);

/// Returns the folder itself, or those in it that are runs, sorted. Throws Error naming the folder
/// where there is none.
std::vector<std::filesystem::path> find_runs(const std::filesystem::path& folder);

/// Reads a run's folder, of a run that goes on too. Lines that are torn or no JSON are left out and
/// counted in a note. Throws Error where metrics.jsonl cannot be read or has no step at all.
RunHistory read_run(const std::filesystem::path& folder);

}  // namespace tokamak
