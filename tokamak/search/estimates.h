// How long the plans of a search may take, before any of them is made. docs/pricing.md, "Search".
#pragma once

#include <limits>
#include <vector>

#include "tokamak/search/search.h"

namespace tokamak {

struct Estimates {
  std::vector<PointEstimate> fitting;                            ///< fastest first
  double least_bytes = std::numeric_limits<double>::infinity();  ///< of points that do not fit
  int num_relatives = 0;  ///< small models that were planned and priced
};

/// Estimates the points from the prices of small relatives of the model: two depths for each
/// microbatch, cp, tp, recompute mode and precision. The result is the same for any number of
/// threads. Throws Error if the weights of no point fit, or no relative has a plan.
Estimates estimate_points(const SearchRequest& request, const std::vector<SearchPoint>& points);

}  // namespace tokamak
