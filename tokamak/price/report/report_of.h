// The report of a priced run, its trace and its page.
#pragma once

#include "tokamak/price/report/report.h"
#include "tokamak/price/run/priced_run.h"

namespace tokamak {

/// `tokens` to train for.
price::Report report_of(const PriceRequest& request, const PricedRun& run, double tokens);

/// A Chrome trace of the priced step, all ranks. REQUIRES: the run has spans.
std::string trace_of(const PricedRun& run);

/// A page with pictures of it. REQUIRES: as above.
std::string page_of(const PricedRun& run, const price::Report& report);

}  // namespace tokamak
