#include "tokamak/plan/slots.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "tokamak/core/error.h"
#include "tokamak/plan/item_order.h"
#include "tokamak/plan/outliving.h"

namespace tokamak {
namespace {

// Items [first, end) during which a microbatch holds a slot.
struct Hold {
  int slot_class = 0;
  int microbatch = 0;
  int first = 0;
  int end = 0;
  int slot = -1;
};

std::vector<std::vector<int>> classes_by_segment(const Plan& plan) {
  std::vector<std::vector<int>> by_segment;
  for (const Segment& segment : plan.segments) {
    std::set<int> classes;
    for (const Task& task : segment.tasks) {
      for (const auto* list : {&task.in, &task.out}) {
        for (const Operand& o : *list) {
          if (o.arena == ArenaKind::kSlot) classes.insert(o.slot_class);
        }
      }
    }
    TOK_CHECK(classes.empty() || segment.runs == Segment::Runs::kPerMicrobatch,
              "{} runs once a step and reads what one microbatch has saved", segment.name);
    by_segment.emplace_back(classes.begin(), classes.end());
  }
  return by_segment;
}

// Returns the class whose slots these are.
int holder_of(const Plan& plan, int slot_class) {
  const int holder = plan.slots[slot_class].alias_of;
  return holder >= 0 ? holder : slot_class;
}

std::vector<Hold> holds_of(const Plan& plan, const std::vector<std::vector<int>>& classes) {
  const ItemOrder order(plan, plan.items);
  int num_microbatches = 0;
  for (const ScheduleItem& item : plan.items)
    num_microbatches = std::max(num_microbatches, item.microbatch + 1);
  std::vector<Hold> list;
  std::vector<int> held(plan.slots.size() * static_cast<size_t>(num_microbatches), -1);
  for (int i = 0; i < std::ssize(plan.items); ++i) {
    const ScheduleItem& item = plan.items[i];
    const std::vector<int>& used = classes[item.segment];
    if (used.empty()) continue;
    const int end = order.known_from(i, i + 1);
    for (const int used_class : used) {
      const int c = holder_of(plan, used_class);
      const int microbatch = item.microbatch_of(plan.slots[used_class]);
      int& hold = held[static_cast<size_t>(c) * static_cast<size_t>(num_microbatches) +
                       static_cast<size_t>(microbatch)];
      if (hold < 0) {
        hold = static_cast<int>(list.size());
        list.push_back({.slot_class = c, .microbatch = microbatch, .first = i});
      }
      Hold& mine = list[hold];
      mine.end = std::max(mine.end, end);
    }
  }
  return list;
}

// Gives each hold of `classes` the lowest free slot of one pool, whose size is the most
// slots held at once.
void deal(std::vector<Hold>& holds, const std::vector<int>& classes) {
  std::vector<int> free_from;  // by slot: the item from which on it is free
  for (Hold& hold : holds) {
    if (std::find(classes.begin(), classes.end(), hold.slot_class) == classes.end()) continue;
    const auto slot = std::find_if(free_from.begin(), free_from.end(),
                                   [&](int end) { return end <= hold.first; });
    hold.slot = static_cast<int>(slot - free_from.begin());
    if (slot == free_from.end()) {
      free_from.push_back(hold.end);
    } else {
      *slot = hold.end;
    }
  }
}

// A pool with how many of its slots are held, item by item.
struct HeldPool : SlotPool {
  std::vector<int> held;
};

int most_of(const std::vector<int>& held) {
  return held.empty() ? 0 : *std::max_element(held.begin(), held.end());
}

// Adds the holds of two lists item by item.
void add_held(std::vector<int>& to, const std::vector<int>& other) {
  for (size_t i = 0; i < to.size(); ++i) to[i] += other[i];
}

void join(HeldPool& to, const HeldPool& other) {
  to.classes.insert(to.classes.end(), other.classes.begin(), other.classes.end());
  to.slot_bytes = std::max(to.slot_bytes, other.slot_bytes);
  add_held(to.held, other.held);
  to.count = most_of(to.held);
}

// A microbatch is in one stage at a time, so sharing among all stages of a rank can save bytes even
// where no pair of them saves any. Joins as many pools, from the largest on, as save the most.
void join_from_the_largest(std::vector<HeldPool>& pools) {
  std::stable_sort(pools.begin(), pools.end(), [](const HeldPool& a, const HeldPool& b) {
    return a.slot_bytes > b.slot_bytes;
  });
  std::vector<HeldPool> kept;
  for (size_t a = 0; a < pools.size();) {
    HeldPool best = pools[a];
    size_t best_end = a + 1;
    int64_t most_saved = 0;
    int64_t apart = pools[a].bytes();
    HeldPool all = pools[a];
    for (size_t b = a + 1; b < pools.size(); ++b) {
      apart += pools[b].bytes();
      join(all, pools[b]);
      if (apart - all.bytes() <= most_saved) continue;
      most_saved = apart - all.bytes();
      best = all;
      best_end = b + 1;
    }
    kept.push_back(std::move(best));
    a = best_end;
  }
  pools = std::move(kept);
}

// Returns the most slots that two pools together hold.
int count_of_both(const HeldPool& a, const HeldPool& b) {
  int most = 0;
  for (size_t i = 0; i < a.held.size(); ++i) most = std::max(most, a.held[i] + b.held[i]);
  return most;
}

void join_pairs(std::vector<HeldPool>& pools) {
  for (size_t a = 0; a < pools.size(); ++a) {
    for (size_t b = a + 1; b < pools.size();) {
      const int64_t both =
          std::max(pools[a].slot_bytes, pools[b].slot_bytes) * count_of_both(pools[a], pools[b]);
      if (both >= pools[a].bytes() + pools[b].bytes()) {
        ++b;
        continue;
      }
      join(pools[a], pools[b]);
      pools.erase(pools.begin() + static_cast<std::ptrdiff_t>(b));
    }
  }
}

int64_t total_bytes(const std::vector<HeldPool>& pools) {
  int64_t bytes = 0;
  for (const HeldPool& pool : pools) bytes += pool.bytes();
  return bytes;
}

std::vector<SlotNeed> needs_of(const Plan& plan, const std::vector<Hold>& holds) {
  std::vector<SlotNeed> needs(plan.slots.size());
  for (size_t c = 0; c < needs.size(); ++c) {
    needs[c].bytes = plan.slots[c].alias_of >= 0 ? 0 : plan.slots[c].bytes;
    needs[c].held.assign(plan.items.size() + 1, 0);
  }
  // Marks where holds begin and end, then sums the marks.
  for (const Hold& hold : holds) {
    std::vector<int>& held = needs[hold.slot_class].held;
    ++held[hold.first];
    --held[hold.end];
  }
  for (SlotNeed& need : needs)
    std::partial_sum(need.held.begin(), need.held.end(), need.held.begin());
  return needs;
}

void set_slot_bytes(Plan& plan, int64_t bytes) {
  int64_t& arena = plan.arena_bytes[ArenaKind::kSlot];
  const int64_t more = bytes - arena;
  arena = bytes;
  const auto row = std::find_if(plan.memory.begin(), plan.memory.end(),
                                [](const MemoryRow& r) { return r.owner == kSavedActivationsRow; });
  if (row != plan.memory.end()) {
    row->bytes += more;
  } else if (more != 0) {
    plan.memory.push_back({.owner = std::string(kSavedActivationsRow), .bytes = more});
  }
}

}  // namespace

// The second next run of a slot's maker waits for the slot's background readers, so that two slots
// suffice instead of one per microbatch. A send may block its rank at once (lower_schedule),
// so it may do so later.
void wait_for_readers(Plan& plan) {
  const auto classes = classes_by_segment(plan);
  constexpr int kInFlight = 2;
  const ItemOrder order(plan, plan.items);
  const int count = static_cast<int>(plan.items.size());
  for (int i = 0; i < count; ++i) {
    const int segment = plan.items[i].segment;
    if (!plan.segments[segment].is_background) continue;
    std::vector<int> makers;
    for (const int c : classes[segment]) {
      const int maker = plan.slots[c].first_segment;
      if (!plan.segments[maker].is_background) makers.push_back(maker);
    }
    if (makers.empty()) continue;
    int runs = 0;
    for (int j = i + 1; j < count && !order.is_known(i, j); ++j) {
      ScheduleItem& later = plan.items[j];
      const auto& joined = plan.segments[later.segment].joined;
      const int runs_as = joined ? joined->forward : later.segment;
      if (std::find(makers.begin(), makers.end(), runs_as) == makers.end()) continue;
      if (++runs < kInFlight) continue;
      later.waits.push_back(i);
      break;
    }
  }
}

std::vector<SlotNeed> slot_needs(const Plan& plan) {
  return needs_of(plan, holds_of(plan, classes_by_segment(plan)));
}

// Begins with one pool per class and joins pools where that saves bytes: pair by pair, which leaves
// each stage the slots of its schedule, or from the largest on if that saves more than a fiftieth.
std::vector<SlotPool> share_slots(std::span<const SlotNeed> needs) {
  std::vector<HeldPool> pools;
  for (size_t c = 0; c < needs.size(); ++c) {
    HeldPool& pool = pools.emplace_back();
    pool.classes = {static_cast<int>(c)};
    pool.slot_bytes = needs[c].bytes;
    pool.count = most_of(needs[c].held);
    pool.held = needs[c].held;
  }
  std::vector<HeldPool> from_the_largest = pools;
  join_from_the_largest(from_the_largest);
  join_pairs(from_the_largest);
  join_pairs(pools);
  if (50 * total_bytes(from_the_largest) < 49 * total_bytes(pools))
    pools = std::move(from_the_largest);
  return {pools.begin(), pools.end()};
}

void assign_slots(Plan& plan) {
  const auto classes = classes_by_segment(plan);
  wait_for_outliving(plan);
  wait_for_readers(plan);
  for (SlotClass& slots : plan.slots) slots.value_bytes = slots.bytes;
  std::vector<Hold> holds = holds_of(plan, classes);
  int64_t bytes = 0;
  for (const SlotPool& pool : share_slots(needs_of(plan, holds))) {
    deal(holds, pool.classes);
    for (const int c : pool.classes) {
      SlotClass& slots = plan.slots[c];
      slots.bytes = pool.slot_bytes;
      slots.count = pool.count;
      slots.offset = bytes;
    }
    bytes += pool.bytes();
  }
  for (SlotClass& slots : plan.slots) {
    if (slots.alias_of < 0) continue;
    const int holder = slots.alias_of;
    slots = plan.slots[holder];
    slots.alias_of = holder;
  }
  set_slot_bytes(plan, bytes);
  std::map<std::pair<int, int>, int> slot_of;
  for (const Hold& hold : holds) slot_of[{hold.slot_class, hold.microbatch}] = hold.slot;
  for (ScheduleItem& item : plan.items) {
    item.slots.assign(plan.slots.size(), -1);
    for (const int c : classes[item.segment])
      item.slots[c] = slot_of.at({holder_of(plan, c), item.microbatch_of(plan.slots[c])});
  }
}

}  // namespace tokamak
