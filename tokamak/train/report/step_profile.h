// Writes what profiling asks for: traces and tables of some steps.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string_view>
#include <vector>

#include "tokamak/run/op_table.h"
#include "tokamak/run/planned_run.h"
#include "tokamak/train/report/run_log.h"

namespace tokamak {

struct ProfilingOptions {
  std::filesystem::path traces_folder;  ///< empty = no traces
  DeviceRates rates;                    ///< of the device, for floors next to the traces
  int64_t freq = 10;
  int64_t active = 1;
  std::filesystem::path memory_folder;  ///< empty = no memory tables
};

/// One rank's files. A failed write does not end training; a line reports it.
class StepProfile {
 public:
  StepProfile(const ProfilingOptions& options, const PlannedRun& run, int rank, const RunLog& log)
      : o_(options), run_(run), rank_(rank), log_(log) {}

  bool is_traced(int64_t step) const;

  void write_trace(int64_t step, const std::vector<TaskSpan>& spans) const;

  /// Writes the memory table if one is due after the step.
  void write_memory(int64_t step) const;

 private:
  std::filesystem::path path_of(const std::filesystem::path& folder, int64_t step,
                                std::string_view what) const;
  void write(const std::function<void()>& work) const;

  const ProfilingOptions& o_;
  const PlannedRun& run_;
  int rank_;
  const RunLog& log_;
};

}  // namespace tokamak
