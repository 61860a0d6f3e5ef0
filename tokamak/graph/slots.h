// What a schedule of items knows and holds: order between items, and slots for what one segment
// saves for another.
#pragma once

#include <vector>

#include "tokamak/graph/plan.h"

namespace tokamak {

/// Which earlier items are known to have ended when an item begins.
class ItemOrder {
 public:
  /// Throws Bug if an item waits for one that is not an earlier one of a background segment.
  ItemOrder(const Plan& plan, const std::vector<ScheduleItem>& items);

  /// Whether `earlier` has ended before `item` begins. REQUIRES: earlier < item.
  bool has_ended(int earlier, int item) const;

  /// The first item from which on, in the foreground, `item` is known to have ended; the number of
  /// items if none. Grows with `from`, where the search begins. REQUIRES: from > item.
  int known_from(int item, int from) const;

 private:
  using Clock = std::vector<int>;  // by stream: the last item whose tasks of it have ended

  bool covers(const Clock& clock, int item) const;

  std::vector<std::vector<size_t>> streams_of_;  // by segment
  std::vector<int> segment_of_;                  // by item
  std::vector<Clock> at_start_;                  // by item
  std::vector<Clock> foreground_;                // by item: when it begins or is issued
};

/// Slots for the microbatches in flight of `plan.items`: counts and offsets of the classes, the
/// slot of each item, the slot arena and its row in the memory table. Classes share their slots
/// where that takes fewer bytes. Throws Bug where a once-a-step segment reads a slot.
void assign_slots(Plan& plan);

}  // namespace tokamak
