#include "tokamak/graph/slots.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "tokamak/core/error.h"

namespace tokamak {

ItemOrder::ItemOrder(const Plan& plan, const std::vector<ScheduleItem>& items) {
  std::map<int, size_t> numbers{{0, 0}};
  for (const Segment& segment : plan.segments) {
    std::set<size_t> streams;
    for (const Task& task : segment.tasks) {
      TOK_CHECK(task.stream != 0 || !segment.is_background, "{}: {} runs in the background",
                segment.name, task.rules->name);
      streams.insert(numbers.emplace(task.stream, numbers.size()).first->second);
    }
    streams_of_.emplace_back(streams.begin(), streams.end());
  }
  const auto join = [](Clock& into, const Clock& other) {
    for (size_t s = 0; s < into.size(); ++s) into[s] = std::max(into[s], other[s]);
  };
  Clock now(numbers.size(), -1);
  std::vector<Clock> stream(numbers.size(), now);
  std::vector<Clock> at_end;
  for (int i = 0; i < std::ssize(items); ++i) {
    const ScheduleItem& item = items[static_cast<size_t>(i)];
    const bool is_background = plan.segments[static_cast<size_t>(item.segment)].is_background;
    segment_of_.push_back(item.segment);
    Clock start = now;
    for (const int w : item.waits) {
      TOK_CHECK(
          w >= 0 && w < i &&
              plan.segments[static_cast<size_t>(segment_of_[static_cast<size_t>(w)])].is_background,
          "item {} waits for {}", i, w);
      join(start, at_end[static_cast<size_t>(w)]);
    }
    if (!is_background) now = start;
    at_start_.push_back(start);
    foreground_.push_back(now);
    Clock end = start;
    for (const size_t s : streams_of_[static_cast<size_t>(item.segment)]) {
      join(stream[s], start);
      stream[s][s] = i;
      join(end, stream[s]);
    }
    if (!is_background) now = end;
    at_end.push_back(std::move(end));
  }
}

bool ItemOrder::covers(const Clock& clock, int item) const {
  const auto& streams = streams_of_[static_cast<size_t>(segment_of_[static_cast<size_t>(item)])];
  return std::all_of(streams.begin(), streams.end(), [&](size_t s) { return clock[s] >= item; });
}

bool ItemOrder::has_ended(int earlier, int item) const {
  return covers(at_start_[static_cast<size_t>(item)], earlier);
}

int ItemOrder::known_from(int item, int from) const {
  int i = from;
  while (i < std::ssize(foreground_) && !covers(foreground_[static_cast<size_t>(i)], item)) ++i;
  return i;
}

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

// What reads a slot in the background is waited for before its maker has run twice more, so that
// two slots do instead of one for each microbatch. A send may block its rank at once
// (lower_schedule), so it may do so later.
void wait_for_readers(Plan& plan, const std::vector<std::vector<int>>& classes) {
  constexpr int kInFlight = 2;
  const ItemOrder order(plan, plan.items);
  const int count = static_cast<int>(plan.items.size());
  for (int i = 0; i < count; ++i) {
    const int segment = plan.items[static_cast<size_t>(i)].segment;
    if (!plan.segments[static_cast<size_t>(segment)].is_background) continue;
    std::set<int> makers;
    for (const int c : classes[static_cast<size_t>(segment)]) {
      const int maker = plan.slots[static_cast<size_t>(c)].first_segment;
      if (!plan.segments[static_cast<size_t>(maker)].is_background) makers.insert(maker);
    }
    const int known = order.known_from(i, i + 1);
    int runs = 0;
    for (int j = i + 1; j < known && runs < kInFlight; ++j) {
      ScheduleItem& later = plan.items[static_cast<size_t>(j)];
      if (makers.contains(later.segment) && ++runs == kInFlight) later.waits.push_back(i);
    }
  }
}

std::vector<Hold> holds_of(const Plan& plan, const std::vector<std::vector<int>>& classes) {
  const ItemOrder order(plan, plan.items);
  std::map<std::pair<int, int>, Hold> holds;
  for (int i = 0; i < std::ssize(plan.items); ++i) {
    const ScheduleItem& item = plan.items[static_cast<size_t>(i)];
    for (const int c : classes[static_cast<size_t>(item.segment)]) {
      Hold& hold =
          holds
              .try_emplace({c, item.microbatch},
                           Hold{.slot_class = c, .microbatch = item.microbatch, .first = i})
              .first->second;
      hold.end = std::max(hold.end, order.known_from(i, i + 1));
    }
  }
  std::vector<Hold> list;
  for (const auto& [key, hold] : holds) list.push_back(hold);
  std::stable_sort(list.begin(), list.end(),
                   [](const Hold& a, const Hold& b) { return a.first < b.first; });
  return list;
}

// Gives the holds of `classes` slots of one pool, the lowest free one each; returns how many.
int colour(std::vector<Hold>& holds, const std::vector<int>& classes) {
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
  return static_cast<int>(free_from.size());
}

struct Pool {
  std::vector<int> classes;
  int64_t slot_bytes = 0;
  int count = 0;

  int64_t bytes() const { return slot_bytes * count; }
};

Pool joined(const std::vector<Pool>& pools, const std::vector<size_t>& which,
            std::vector<Hold>& holds) {
  Pool all;
  for (const size_t p : which) {
    all.classes.insert(all.classes.end(), pools[p].classes.begin(), pools[p].classes.end());
    all.slot_bytes = std::max(all.slot_bytes, pools[p].slot_bytes);
  }
  all.count = colour(holds, all.classes);
  return all;
}

// A microbatch is in one stage at a time, so the values that all stages of a rank save share with
// profit even where no two of them do. From the largest on, joins as many as save the most.
void join_from_the_largest(std::vector<Pool>& pools, std::vector<Hold>& holds) {
  std::stable_sort(pools.begin(), pools.end(),
                   [](const Pool& a, const Pool& b) { return a.slot_bytes > b.slot_bytes; });
  std::vector<Pool> kept;
  for (size_t a = 0; a < pools.size();) {
    Pool best = pools[a];
    size_t best_end = a + 1;
    int64_t most_saved = 0;
    int64_t apart = pools[a].bytes();
    std::vector<size_t> which{a};
    for (size_t b = a + 1; b < pools.size(); ++b) {
      which.push_back(b);
      apart += pools[b].bytes();
      Pool all = joined(pools, which, holds);
      if (apart - all.bytes() <= most_saved) continue;
      most_saved = apart - all.bytes();
      best = std::move(all);
      best_end = b + 1;
    }
    kept.push_back(std::move(best));
    a = best_end;
  }
  pools = std::move(kept);
}

void join_pairs(std::vector<Pool>& pools, std::vector<Hold>& holds) {
  for (size_t a = 0; a < pools.size(); ++a) {
    for (size_t b = a + 1; b < pools.size();) {
      Pool both = joined(pools, {a, b}, holds);
      if (both.bytes() >= pools[a].bytes() + pools[b].bytes()) {
        ++b;
        continue;
      }
      pools[a] = std::move(both);
      pools.erase(pools.begin() + static_cast<std::ptrdiff_t>(b));
    }
  }
}

int64_t total_bytes(const std::vector<Pool>& pools) {
  int64_t bytes = 0;
  for (const Pool& pool : pools) bytes += pool.bytes();
  return bytes;
}

// One pool for each class; pools are joined where that saves bytes: pair by pair, which leaves to
// each stage the slots of its schedule, or else from the largest on, where that saves more than a
// fiftieth.
std::vector<Pool> make_pools(const Plan& plan, std::vector<Hold>& holds) {
  std::vector<Pool> pools;
  for (int c = 0; c < std::ssize(plan.slots); ++c) {
    pools.push_back({.classes = {c}, .slot_bytes = plan.slots[static_cast<size_t>(c)].bytes});
    pools.back().count = colour(holds, pools.back().classes);
  }
  std::vector<Pool> from_the_largest = pools;
  join_from_the_largest(from_the_largest, holds);
  join_pairs(from_the_largest, holds);
  join_pairs(pools, holds);
  if (50 * total_bytes(from_the_largest) < 49 * total_bytes(pools))
    pools = std::move(from_the_largest);
  for (const Pool& pool : pools) colour(holds, pool.classes);
  return pools;
}

void set_slot_bytes(Plan& plan, int64_t bytes) {
  int64_t& arena = plan.arena_bytes[static_cast<size_t>(ArenaKind::kSlot)];
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

void assign_slots(Plan& plan) {
  const auto classes = classes_by_segment(plan);
  wait_for_readers(plan, classes);
  for (SlotClass& slots : plan.slots) slots.value_bytes = slots.bytes;
  std::vector<Hold> holds = holds_of(plan, classes);
  int64_t bytes = 0;
  for (const Pool& pool : make_pools(plan, holds)) {
    for (const int c : pool.classes) {
      SlotClass& slots = plan.slots[static_cast<size_t>(c)];
      slots.bytes = pool.slot_bytes;
      slots.count = pool.count;
      slots.offset = bytes;
    }
    bytes += pool.bytes();
  }
  set_slot_bytes(plan, bytes);
  std::map<std::pair<int, int>, int> slot_of;
  for (const Hold& hold : holds) slot_of[{hold.slot_class, hold.microbatch}] = hold.slot;
  for (ScheduleItem& item : plan.items) {
    item.slots.assign(plan.slots.size(), -1);
    for (const int c : classes[static_cast<size_t>(item.segment)])
      item.slots[static_cast<size_t>(c)] = slot_of.at({c, item.microbatch});
  }
}

}  // namespace tokamak
