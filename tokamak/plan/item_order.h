// The order that a schedule proves: which items have ended when another begins.
#pragma once

#include <vector>

#include "tokamak/plan/plan.h"

namespace tokamak {

/// Which earlier items are known to have ended when an item begins.
class ItemOrder {
 public:
  /// Throws Bug if an item waits for another that is not earlier, or that has neither background
  /// tasks nor tasks that outlive it.
  ItemOrder(const Plan& plan, const std::vector<ScheduleItem>& items);

  /// Whether `earlier` has ended before `item` begins; tasks that outlive it may still run.
  /// REQUIRES: earlier < item.
  bool has_ended(int earlier, int item) const;

  /// Whether the tasks that outlive `earlier` have ended too. REQUIRES: earlier < item.
  bool has_ended_wholly(int earlier, int item) const;

  /// Whether the foreground knows, when it reaches item `at`, that `item` has ended.
  /// REQUIRES: item < at.
  bool is_known(int item, int at) const;

  /// Returns the first item from which on the foreground knows `item` to have ended, or the number
  /// of items if there is none. The search begins at `from`; the result grows with it.
  /// REQUIRES: from > item.
  int known_from(int item, int from) const;

 private:
  size_t segment_of(int item) const { return static_cast<size_t>(segment_of_[item]); }

  // `clocks` has num_streams_ entries per item: for each stream, the last item whose tasks on it
  // have ended.
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
