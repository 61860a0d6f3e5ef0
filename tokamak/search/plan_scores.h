// Closed forms of a search's points, as far as they may be among the best.
#pragma once

#include <limits>
#include <vector>

#include "tokamak/price/step/closed_form.h"
#include "tokamak/search/search.h"

namespace tokamak {

struct Scored {
  const SearchPoint* point = nullptr;
  price::ClosedForm form;
};

struct Scores {
  std::vector<Scored> fitting;  ///< fastest first
  int num_probes = 0;           ///< small relatives that were planned
  /// Of any point that was looked at; at least so many where it does not fit.
  double least_bytes = std::numeric_limits<double>::infinity();
};

/// Every point that fits and may be among the `num_wanted` best that differ in more than their data
/// parallelism. The same for any number of threads. Throws Error where no point's weights fit.
Scores score_points(const SearchRequest& request, const std::vector<SearchPoint>& points,
                    size_t num_wanted);

/// Of points that differ in little, the first alone: a table shall show choices.
std::vector<const Scored*> leaders(const std::vector<Scored>& scored);

}  // namespace tokamak
