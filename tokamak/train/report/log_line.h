// The console lines, byte for byte as torchtitan prints them up to mfu, so that log parsers written
// for it keep working; our own fields follow.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "tokamak/train/report/step_metrics.h"

namespace tokamak {

/// `metrics.disable_color_printing` chooses kPlain.
enum class LogColor { kPlain, kAnsi };

/// Returns "[titan] YYYY-MM-DD HH:MM:SS,mmm - root - LEVEL - " in local time. `level` is INFO or
/// WARNING.
std::string log_prefix(std::chrono::system_clock::time_point now, std::string_view level = "INFO");

/// Returns "step:  1  loss: ...  mfu: ...%", then "  mfu_causal: ...%" if known and the seconds of
/// "data" and "exposed_comm" if measured. An unknown field reads N/A, such as mfu on a CPU whose
/// peak `doctor` has not measured.
std::string step_line(const StepMetrics& metrics, LogColor color);

/// Returns "validate step:  1  loss: ...  memory: ...  tps: ...".
std::string validation_line(const ValidationMetrics& metrics, LogColor color);

}  // namespace tokamak
