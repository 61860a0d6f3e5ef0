// metrics.jsonl and validation.jsonl: one JSON object per line, one writer per job. Each line goes
// out in one write; numbers are the shortest text that reads back to the same double; unknown, NaN
// and infinite values are null.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "tokamak/core/file.h"
#include "tokamak/train/report/step_metrics.h"

namespace tokamak {

/// With resumed_step = 0, renames the file of an earlier run, if there is one, to PATH.previous.
/// Throws Error where that fails or the path is a pipe, which would block.
void make_way(const std::filesystem::path& path, int64_t resumed_step);

/// Returns one line of metrics.jsonl, with its newline. Phases are data_s, forward_s, backward_s,
/// exposed_comm_s, optimizer_s and checkpoint_s.
std::string to_json_line(const StepMetrics& metrics);

/// Returns one line of validation.jsonl, with its newline.
std::string to_json_line(const ValidationMetrics& metrics);

/// Returns the lines of `text` whose "step" is at most `last_step`. Drops a torn or foreign line.
std::string cut_to_step(std::string_view text, int64_t last_step);

/// Appends lines to a file that always ends in a whole line.
class MetricsFile {
 public:
  /// Opens `path` for a run that resumes after `resumed_step`. Lines of later steps are cut away
  /// (written aside, then renamed). With resumed_step = 0 the file of an earlier run is kept as
  /// PATH.previous. Throws Error where the path cannot be written.
  MetricsFile(std::filesystem::path path, int64_t resumed_step);

  /// Throws SystemError (disk full); the file then ends at the last whole line, and the next call
  /// writes this line too.
  void append(const StepMetrics& metrics) { append_lines(to_json_line(metrics)); }

  void append(const ValidationMetrics& metrics) { append_lines(to_json_line(metrics)); }

 private:
  void append_lines(std::string_view lines);

  std::filesystem::path path_;
  FileWriter file_;
  std::string pending_;
};

}  // namespace tokamak
