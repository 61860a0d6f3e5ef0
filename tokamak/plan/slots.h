// Slots for values that one segment saves for another, as a schedule of items holds them.
#pragma once

#include <span>
#include <vector>

#include "tokamak/plan/plan.h"

namespace tokamak {

/// Adds waits for background tasks that read a slot, so that two slots suffice instead of one per
/// microbatch.
void wait_for_readers(Plan& plan);

/// One class of slots: the bytes of its values and, item by item, how many microbatches hold one.
struct SlotNeed {
  int64_t bytes = 0;
  std::vector<int> held;
};

/// Returns needs by slot class of `plan`, whose items must have all their waits. Throws Bug where a
/// once-a-step segment reads a slot.
std::vector<SlotNeed> slot_needs(const Plan& plan);

/// Classes that share their slots.
struct SlotPool {
  std::vector<int> classes;
  int64_t slot_bytes = 0;
  int count = 0;

  int64_t bytes() const { return slot_bytes * count; }
};

/// Returns pools of all classes, which share slots where that takes fewer bytes.
std::vector<SlotPool> share_slots(std::span<const SlotNeed> needs);

/// Assigns slots to the microbatches in flight of `plan.items`: counts and offsets of the classes,
/// the slot of each item, the slot arena and its row in the memory table. Adds the waits that items
/// lack. Throws Bug as slot_needs() does.
void assign_slots(Plan& plan);

}  // namespace tokamak
