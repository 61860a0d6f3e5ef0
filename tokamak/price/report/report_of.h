// The report of a priced run, its trace and its page.
#pragma once

#include "tokamak/price/report/report.h"
#include "tokamak/price/run/priced_run.h"

namespace tokamak {

/// Makes the report; `tokens` is the number to train for.
price::Report report_of(const PriceRequest& request, const PricedRun& run, double tokens);

/// Returns a Chrome trace of the priced step of all ranks. REQUIRES: the run has spans.
std::string trace_of(const PricedRun& run);

/// Returns a page with the report and its pictures. REQUIRES: the run has spans.
std::string page_of(const PricedRun& run, const price::Report& report);

}  // namespace tokamak
