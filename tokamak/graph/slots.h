// What a schedule of items knows and holds: order between items, and slots for what one segment
// saves for another.
#pragma once

#include <span>
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

  /// Whether the foreground knows when item `at` comes that `item` has ended. REQUIRES: item < at.
  bool is_known(int item, int at) const;

  /// The first item from which on, in the foreground, `item` is known to have ended; the number of
  /// items if none. Grows with `from`, where the search begins. REQUIRES: from > item.
  int known_from(int item, int from) const;

 private:
  // By stream: the last item whose tasks of it have ended; num_streams_ of them from `clocks` on.
  bool covers(const std::vector<int>& clocks, int at, int item) const;

  size_t num_streams_ = 1;
  std::vector<std::vector<size_t>> streams_of_;  // by segment
  std::vector<int> segment_of_;                  // by item
  std::vector<int> at_start_;                    // by item, stream
  std::vector<int> foreground_;                  // the same when it begins or is issued
};

/// Adds waits for what reads a slot in the background, so that two slots do instead of one for each
/// microbatch.
void wait_for_readers(Plan& plan);

/// One class of slots: the bytes of its values and, item by item, how many microbatches hold one.
struct SlotNeed {
  int64_t bytes = 0;
  std::vector<int16_t> held;
};

/// By slot class of `plan`, whose items have all their waits. Throws Bug where a once-a-step
/// segment reads a slot.
std::vector<SlotNeed> slot_needs(const Plan& plan);

/// Classes that share their slots.
struct SlotPool {
  std::vector<int> classes;
  int64_t slot_bytes = 0;
  int count = 0;

  int64_t bytes() const { return slot_bytes * count; }
};

/// Pools of all classes, shared where that takes fewer bytes.
std::vector<SlotPool> share_slots(std::span<const SlotNeed> needs);

/// Slots for the microbatches in flight of `plan.items`: counts and offsets of the classes, the
/// slot of each item, the slot arena and its row in the memory table. Throws Bug as slot_needs().
void assign_slots(Plan& plan);

}  // namespace tokamak
