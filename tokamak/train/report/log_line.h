// The console lines, byte for byte as torchtitan prints them up to mfu, so that log parsers written
// for it keep working; our own fields follow.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "tokamak/train/report/step_metrics.h"

namespace tokamak {

enum class LogColor { kPlain, kAnsi };

/// The text before each line.
enum class LogFormat {
  kPlain,       ///< "YYYY-MM-DD HH:MM:SS ", and "WARNING: " before warnings
  kTorchtitan,  ///< "[titan] YYYY-MM-DD HH:MM:SS,mmm - root - LEVEL - "
};

/// Returns what stands before a line, with the local time. `level` is INFO or WARNING.
std::string log_prefix(std::chrono::system_clock::time_point now, std::string_view level,
                       LogFormat format, LogColor color = LogColor::kPlain);

/// Returns "step:  1  loss: ...  mfu: ...%", then the seconds of "data" and "exposed_comm" that are
/// 1 % of the step or more. An unknown field reads N/A, such as
/// mfu on a CPU whose peak `doctor` has not measured. Where the line is wider than `columns`,
/// fields are left out, those of least weight first; 0 = there is room for all.
std::string step_line(const StepMetrics& metrics, LogColor color, int columns = 0);

/// Returns the line that a terminal shows during the run, in at most `columns` columns:
/// "step 120/240  50%  loss 4.829  4,451 tok/s  1m12s left  0.30 GiB". What does not fit is left
/// out from its end.
std::string progress_line(const StepProgress& progress, LogColor color, int columns);

/// Returns "validate step:  1  loss: ...  memory: ...  tps: ...", likewise.
std::string validation_line(const ValidationMetrics& metrics, LogColor color, int columns = 0);

}  // namespace tokamak
