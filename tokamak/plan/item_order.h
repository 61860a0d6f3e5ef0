// What a schedule of items knows: which have ended where another begins.
#pragma once

#include <vector>

#include "tokamak/plan/plan.h"

namespace tokamak {

/// Which earlier items are known to have ended when an item begins.
class ItemOrder {
 public:
  /// Throws Bug if an item waits for one that is not an earlier one with tasks in the background or
  /// such that outlive it.
  ItemOrder(const Plan& plan, const std::vector<ScheduleItem>& items);

  /// Whether `earlier` has ended before `item` begins; what outlives it may still run.
  /// REQUIRES: earlier < item.
  bool has_ended(int earlier, int item) const;

  /// Whether what outlives `earlier` has ended too. REQUIRES: earlier < item.
  bool has_ended_wholly(int earlier, int item) const;

  /// Whether the foreground knows when item `at` comes that `item` has ended. REQUIRES: item < at.
  bool is_known(int item, int at) const;

  /// The first item from which on, in the foreground, `item` is known to have ended; the number of
  /// items if none. Grows with `from`, where the search begins. REQUIRES: from > item.
  int known_from(int item, int from) const;

 private:
  size_t segment_of(int item) const { return static_cast<size_t>(segment_of_[item]); }

  // By stream: the last item whose tasks of it have ended; num_streams_ of them from `clocks` on.
  bool covers(const std::vector<int>& clocks, int at, int item,
              const std::vector<size_t>& streams) const;

  size_t num_streams_ = 1;
  std::vector<std::vector<size_t>> streams_of_;    // by segment: that an item's end waits for
  std::vector<std::vector<size_t>> outliving_of_;  // by segment
  std::vector<int> segment_of_;                    // by item
  std::vector<int> at_start_;                      // by item, stream
  std::vector<int> foreground_;                    // the same when it begins or is issued
};

}  // namespace tokamak
