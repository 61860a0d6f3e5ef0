// A loop's position in its plan's schedule.
#pragma once

#include <span>

#include "tokamak/core/error.h"
#include "tokamak/plan/plan.h"

namespace tokamak {

/// Goes round plan.items once per step; does nothing for a plan without items.
class ItemCursor {
 public:
  /// The plan must outlive it.
  explicit ItemCursor(const Plan& plan) : items_(plan.items) {}

  bool has_items() const { return !items_.empty(); }

  /// Throws Bug unless `item` is the one that comes next.
  void advance_to(const ScheduleItem& item) {
    if (!has_items()) return;
    index_ = next_;
    next_ = (next_ + 1) % items_.size();
    const ScheduleItem& planned = items_[index_];
    TOK_CHECK(planned.segment == item.segment && planned.microbatch == item.microbatch,
              "item {} of the schedule is {} of microbatch {}", index_, planned.segment,
              planned.microbatch);
  }

  /// The current item: its index, the earlier items that must have ended, and whether it ends the
  /// step.
  size_t index() const { return index_; }

  std::span<const int> waits() const {
    return has_items() ? std::span<const int>(items_[index_].waits) : std::span<const int>();
  }

  bool ends_step() const { return has_items() && next_ == 0; }

 private:
  std::span<const ScheduleItem> items_;
  size_t next_ = 0;
  size_t index_ = 0;
};

}  // namespace tokamak
