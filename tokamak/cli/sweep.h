// The output of `tokamak sweep`.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tokamak/cli/price.h"
#include "tokamak/price/report/pictures.h"
#include "tokamak/price/report/report.h"

namespace tokamak::cli {

/// One point of a sweep, or of two together.
struct SweepLine {
  std::vector<std::string> values;  ///< by sweep
  int64_t num_gpus = 1;
  std::optional<price::Report> report;
  std::string reason;  ///< why there is none, in one line
};

/// Returns lines in the order of the first sweep's values, each with all values of the second.
/// REQUIRES: one line has a report; this holds for all functions below.
std::string sweep_text(std::span<const Sweep> sweeps, std::span<const SweepLine> lines);

/// Returns one row per line; without a report all cells but the last are empty, which has the
/// reason.
std::string sweep_csv(std::span<const Sweep> sweeps, std::span<const SweepLine> lines);

/// Returns an array of all reports with their values, or the reason why there is no report.
std::string sweep_json(std::span<const Sweep> sweeps, std::span<const SweepLine> lines);

/// Returns a page with the table and a curve over the last sweep for each value of the one before
/// it, next to what was published.
std::string sweep_html(std::span<const Sweep> sweeps, std::span<const SweepLine> lines,
                       std::vector<price::PublishedPoint> published);

}  // namespace tokamak::cli
