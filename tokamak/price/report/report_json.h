// Parts of reports as JSON. Include in .cpp files only.
#pragma once

#include "tokamak/core/json.h"
#include "tokamak/price/report/report.h"

namespace tokamak::price {

/// Returns one object with its keys in the table's order, in seconds, bytes and FLOP/s.
OrderedJson report_json(const Report& report);

/// Returns seconds of a step by category.
OrderedJson time_json(const StepPrice& step);

/// Returns what a device with this rate and peak does, as `count` counts.
OrderedJson flops_json(const FlopsCount& count, double device_tokens_per_s, double peak_flops);

}  // namespace tokamak::price
