// Measuring a training step of a model on random tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "tokamak/exec/backend.h"
#include "tokamak/run/op_table.h"
#include "tokamak/run/planned_run.h"

namespace tokamak {

struct StepBenchmark {
  std::vector<double> step_s;  ///< one entry per measured step, after warm-up
  std::vector<double>
      host_s;               ///< of it, until the loop had issued all work; a CPU does the work then
  std::vector<OpTime> ops;  ///< one traced step, slowest first
  StepSummary summary;      ///< of the same step
  int64_t tokens_per_step = 0;
  double flops_per_step = 0.0;  ///< of all tasks, as priced
  int64_t peak_bytes = 0;

  double median_step_s() const;
  double median_host_s() const;

  double tokens_per_s() const { return static_cast<double>(tokens_per_step) / median_step_s(); }
};

/// Runs `warmup` and then `steps` steps of one microbatch, and one more with every task timed.
StepBenchmark benchmark_step(const PlannedRun& run, int64_t warmup, int64_t steps, Backend& backend,
                             const DeviceRates& rates = {},
                             OpGrouping grouping = OpGrouping::kByOp);

}  // namespace tokamak
