// What `tokamak plan --sweep` prints and writes.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tokamak/cli/price.h"
#include "tokamak/price/report/report.h"

namespace tokamak::cli {

/// One point of a sweep, or of two together.
struct SweepLine {
  std::vector<std::string> values;  ///< by sweep
  int64_t num_gpus = 1;
  std::optional<price::Report> report;
  std::string reason;  ///< why there is none, in one line
};

/// Lines in the order of the first sweep's values, each with all values of the second.
/// REQUIRES: of all that follows, that one of them has a report.
std::string sweep_text(std::span<const Sweep> sweeps, std::span<const SweepLine> lines);

/// One row for each line; without a report its cells are empty, but for the last, the reason.
std::string sweep_csv(std::span<const Sweep> sweeps, std::span<const SweepLine> lines);

/// An array: each report with the values it is of, or the reason why there is none.
std::string sweep_json(std::span<const Sweep> sweeps, std::span<const SweepLine> lines);

/// A page with the table and a curve over the last sweep for each value of the one before it.
std::string sweep_html(std::span<const Sweep> sweeps, std::span<const SweepLine> lines);

}  // namespace tokamak::cli
