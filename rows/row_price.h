// Prices measured rows: what a row's own plans would take on its machine with its software, beside
// what was measured.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "rows/row_run.h"

namespace tokamak {

struct PricedRow {
  MeasuredRun run;
  std::string skipped;  ///< as in the row, or why no plan has its shape
  price::StepPrice step;
  double peak_flops = 0.0;          ///< of one device in the precision of the row's matmuls
  int64_t memory_bytes = 0;         ///< that our plan of the row allocates on the fullest device
  double memory_limit_bytes = 0.0;  ///< of a device, for a plan

  bool fits() const { return static_cast<double>(memory_bytes) <= memory_limit_bytes; }

  /// Returns predicted over measured time, less one.
  double error() const { return step.seconds / run.step_time_s - 1.0; }
};

struct RowPriceOptions {
  std::vector<std::string> assignments;  ///< for every machine: "software.step_overhead_s=10 ms"
};

/// Returns the machine with racks filled as the run's launcher fills them.
price::Machine filled_as_of_run(const MeasuredRun& run, price::Machine machine);

price::StepPrice price_planned_row(const MeasuredRun& run, const PlannedRow& planned,
                                   const price::Machine& machine);

/// Prices all rows in order; rows that run the same plans are planned once. Throws Error if no
/// machine of the rows takes the assignments.
std::vector<PricedRow> price_rows(const std::vector<MeasuredRun>& runs,
                                  const RowPriceOptions& options);

struct ErrorSummary {
  int count = 0;
  double mean = 0.0;  ///< of absolute errors, as are the next three
  double median = 0.0;
  double p90 = 0.0;  ///< the least that nine tenths do not exceed
  double worst = 0.0;
  double bias = 0.0;  ///< mean of signed errors
};

ErrorSummary summarize(std::vector<double> errors);

/// Returns model FLOPs, as causal_flops_per_token() counts them, over what all devices could do in
/// `seconds`.
double restated_mfu(const PricedRow& row, double seconds);

/// Returns one line of JSON: line, source, machine, predicted_step_time_s, measured_step_time_s,
/// error, memory (as of a priced plan: peak_bytes, limit_bytes, fits); or skipped.
std::string to_json(const PricedRow& row);

/// Returns every row, then a summary by family and one by calibrated and tested rows.
std::string to_table(const std::vector<PricedRow>& rows);

}  // namespace tokamak
