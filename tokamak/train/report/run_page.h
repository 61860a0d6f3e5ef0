// A page that shows runs side by side, for a browser (core/page.h).
#pragma once

#include <span>
#include <string>

#include "tokamak/core/json.h"
#include "tokamak/train/report/run_history.h"

namespace tokamak {

/// The most runs of a page.
inline constexpr size_t kMostRunsOfPage = 24;

/// Returns the blocks of a page (core/page.h), which is below 1 MB however long the runs are:
/// curves are thinned, keeping the lowest and highest of each stretch, and of events those that are
/// not saves are kept first. REQUIRES: at least one run, at most kMostRunsOfPage.
OrderedJson run_blocks(std::span<const RunHistory> runs);

/// The page of run_blocks.
std::string run_page(std::string_view title, std::span<const RunHistory> runs);

}  // namespace tokamak
