// Filters what ranks and mpirun write on stderr.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "tokamak/launch/job/rank_end.h"

namespace tokamak::launch {

/// Leaves out mpirun's banners about ranks that ended early (the launcher reports that better) and
/// Tokamak's lines that another rank has written before. Takes out the watchers' news.
class LaunchFilter {
 public:
  LaunchFilter() = default;

  explicit LaunchFilter(std::function<void(const RankNews&)> take_news)
      : take_news_(std::move(take_news)) {}

  /// Returns what should be shown of the whole lines so far; keeps an unfinished line for later.
  std::string pass(std::string_view text);

  /// Returns the rest at the end of the stream.
  std::string finish();

 private:
  std::string pass_line(const std::string& line);

  std::function<void(const RankNews&)> take_news_;
  std::string line_;
  std::string banner_;  ///< of mpirun, from its opening rule of dashes on
  bool in_banner_ = false;
  std::set<std::string> said_;
  bool is_repeated_ = false;  ///< the last statement
};

}  // namespace tokamak::launch
