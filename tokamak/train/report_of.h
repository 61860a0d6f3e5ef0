// The report of a priced run.
#pragma once

#include "tokamak/price/report.h"
#include "tokamak/train/priced_run.h"

namespace tokamak {

/// `tokens` to train for.
price::Report report_of(const PriceRequest& request, const PricedRun& run, double tokens);

}  // namespace tokamak
