#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "tokamak/core/error.h"
#include "tokamak/plan/item_order.h"
#include "tokamak/plan/streams.h"

namespace tokamak {
namespace {

std::string name_of_space(int64_t space) {
  if (space < static_cast<int64_t>(kNumArenas))
    return std::string(name_of(static_cast<ArenaKind>(space)));
  return fmt::format("slot.{}", space - static_cast<int64_t>(kNumArenas));
}

bool is_slot(int64_t space) {
  return space >= static_cast<int64_t>(kNumArenas);
}

bool touch(const ByteUse& a, const ByteUse& b) {
  return a.space == b.space && a.begin < b.end && b.begin < a.end && (a.writes || b.writes);
}

// Outliving tasks may touch only State, and those that run before all what is carried, too; others
// run only in their segment's last item.
void check_outliving_streams(const Segment& segment, const std::vector<ByteUse>& uses) {
  TOK_CHECK(!segment.outlives(0), "{}: compute outlives its item", segment.name);
  for (const ByteUse& use : uses) {
    const Task& task = segment.tasks[use.task];
    if (!segment.outlives(task.stream)) continue;
    const bool is_before = segment.runs == Segment::Runs::kOnceBefore;
    const bool stays = use.space == static_cast<int64_t>(ArenaKind::kState) ||
                       (is_before && use.space == static_cast<int64_t>(ArenaKind::kCarried));
    TOK_CHECK(stays, "{}: task {} outlives {}", segment.name, use.task, name_of_space(use.space));
    const bool runs_once = task.when == When::kLastMicrobatch || is_before;
    TOK_CHECK(runs_once, "{}: task {} outlives every item", segment.name, use.task);
  }
}

// The uses of bytes so far: of each range the last write and, of each stream, the last read after
// it. If these are ordered, so are all conflicting uses before them.
class ByteHistory {
 public:
  /// Calls `check(task, byte)` for each use that the next one must come after, and adds that one.
  template <class Check>
  void add(const ByteUse& use, int stream, const Check& check) {
    std::map<int64_t, Range>& ranges = spaces_[use.space];
    split(ranges, use.begin);
    split(ranges, use.end);
    auto range = ranges.lower_bound(use.begin);
    for (int64_t at = use.begin; at < use.end; ++range) {
      if (range == ranges.end() || range->first > at) {
        const int64_t end = range == ranges.end() ? use.end : std::min(use.end, range->first);
        range = ranges.emplace_hint(range, at, Range{.end = end, .readers = {}});
      }
      Range& r = range->second;
      if (r.writer >= 0) check(r.writer, at);
      if (use.writes) {
        for (const auto& [of, reader] : r.readers) check(reader, at);
        r.writer = use.task;
        r.readers.clear();
      } else {
        r.readers[stream] = use.task;
      }
      at = r.end;
    }
  }

 private:
  struct Range {
    int64_t end = 0;
    int writer = -1;
    std::map<int, int> readers;  // by stream
  };

  static void split(std::map<int64_t, Range>& ranges, int64_t at) {
    auto next = ranges.lower_bound(at);
    if (next == ranges.begin() || (next != ranges.end() && next->first == at)) return;
    Range& before = std::prev(next)->second;
    if (before.end <= at) return;
    ranges.emplace_hint(next, at, before);
    before.end = at;
  }

  std::map<int64_t, std::map<int64_t, Range>> spaces_;  // by space and first byte
};

// The tasks of one segment, in the last microbatch or in another one.
void check_segment(const Segment& segment, std::vector<ByteUse> uses, bool last_microbatch) {
  std::vector<StreamTask> tasks;
  for (const Task& task : segment.tasks)
    tasks.push_back({.stream = task.stream, .when = task.when});
  StreamClocks clocks(tasks, last_microbatch);
  for (int t = 0; t < std::ssize(tasks); ++t) {
    const std::vector<int>& waits = segment.tasks[t].waits;
    for (const int w : waits)
      TOK_CHECK(w >= 0 && w < t, "{}: task {} waits for {}", segment.name, t, w);
    clocks.issue(t, waits);
  }
  if (!last_microbatch) {
    std::erase_if(uses,
                  [&](const ByteUse& u) { return tasks[u.task].when == When::kLastMicrobatch; });
  }
  std::stable_sort(uses.begin(), uses.end(),
                   [](const ByteUse& a, const ByteUse& b) { return a.task < b.task; });
  ByteHistory history;
  for (const ByteUse& use : uses) {
    history.add(use, tasks[use.task].stream, [&](int before, int64_t byte) {
      TOK_CHECK(before == use.task || clocks.has(clocks.after(use.task), before),
                "{}: tasks {} and {} race for {}+{}", segment.name, before, use.task,
                name_of_space(use.space), byte);
    });
  }
}

void check_bounds(const Plan& plan, const Segment& segment, const std::vector<ByteUse>& uses) {
  for (const ByteUse& use : uses) {
    const auto c = static_cast<size_t>(use.space) - (is_slot(use.space) ? kNumArenas : 0);
    TOK_CHECK(!is_slot(use.space) || c < plan.slots.size(), "{}: task {} uses {}", segment.name,
              use.task, name_of_space(use.space));
    const int64_t bytes = is_slot(use.space) ? plan.slots[c].bytes : plan.arena_bytes[c];
    TOK_CHECK(use.begin >= 0 && use.end <= bytes, "{}: task {} leaves {}", segment.name, use.task,
              name_of_space(use.space));
  }
}

// Two classes have either disjoint slots or exactly the same ones.
void check_classes(const Plan& plan) {
  for (const SlotClass& a : plan.slots) {
    TOK_CHECK(a.offset >= 0 && a.offset_of(a.count) <= plan.arena_bytes[ArenaKind::kSlot],
              "slots at {} leave their arena", a.offset);
    for (const SlotClass& b : plan.slots) {
      const bool same = a.offset == b.offset && a.bytes == b.bytes && a.count == b.count;
      TOK_CHECK(same || a.offset_of(a.count) <= b.offset || b.offset_of(b.count) <= a.offset,
                "slots at {} and {} overlap", a.offset, b.offset);
    }
  }
}

// Checks items that run at the same time, and the slots that microbatches in flight hold.
class ScheduleCheck {
 public:
  ScheduleCheck(const Plan& plan, const std::vector<std::vector<ByteUse>>& uses)
      : plan_(plan),
        uses_(uses),
        items_(plan.schedule(2)),
        order_(plan, items_),
        known_(plan.segments.size() * plan.segments.size() * 4, Known::kUnknown) {}

  void run() {
    for (int i = 0; i < std::ssize(items_); ++i) {
      TOK_CHECK(item(i).segment >= 0 && item(i).segment < std::ssize(plan_.segments), "item {}", i);
      check_slots(i);
      if (segment(i).is_background) check_beside(i);
      if (item(i).is_last && !segment(i).outliving_streams.empty()) check_outliving(i);
    }
  }

 private:
  enum class Known : uint8_t { kUnknown, kDisjoint, kConflict };

  struct Holder {
    int slot_class = -1;
    int microbatch = -1;
    std::vector<int> items;
  };

  const ScheduleItem& item(int i) const { return items_[i]; }

  const Segment& segment(int i) const { return plan_.segments[item(i).segment]; }

  const std::vector<ByteUse>& uses(int i) const { return uses_[item(i).segment]; }

  void check_slots(int i) {
    std::set<int> classes;
    for (const ByteUse& use : uses(i)) {
      if (is_slot(use.space)) classes.insert(static_cast<int>(use.space - kNumArenas));
    }
    for (const int c : classes) {
      const SlotClass& slots = plan_.slots[c];
      const int slot = item(i).slots.empty() ? 0 : item(i).slots.at(static_cast<size_t>(c));
      TOK_CHECK(slot >= 0 && slot < slots.count, "item {} {}: slot {} of {}", i, segment(i).name,
                slot, slots.count);
      take(i, slots.alias_of >= 0 ? slots.alias_of : c, item(i).microbatch_of(slots),
           slots.offset_of(slot));
    }
  }

  void take(int i, int slot_class, int microbatch, int64_t offset) {
    Holder& holder = holders_[offset];
    if (holder.slot_class != slot_class || holder.microbatch != microbatch) {
      for (const int before : holder.items) {
        TOK_CHECK(order_.has_ended(before, i),
                  "items {} and {} hold the slot at {} at the same time", before, i, offset);
      }
      TOK_CHECK(begun_.insert({slot_class, microbatch}).second,
                "item {} {}: microbatch {} comes back to a slot that another has taken", i,
                segment(i).name, microbatch);
      holder = {.slot_class = slot_class, .microbatch = microbatch, .items = {}};
    }
    holder.items.push_back(i);
  }

  void check_beside(int i) {
    const int end = order_.known_from(i, i + 1);
    for (int j = i + 1; j < end; ++j) {
      if (order_.has_ended(i, j)) continue;
      TOK_CHECK(!conflict(i, j), "item {} {} races with item {} {}", i, segment(i).name, j,
                segment(j).name);
    }
  }

  void check_outliving(int i) {
    for (int j = i + 1; j < std::ssize(items_) && !order_.has_ended_wholly(i, j); ++j)
      TOK_CHECK(!conflict(i, j), "what outlives item {} {} races with item {} {}", i,
                segment(i).name, j, segment(j).name);
  }

  // Slots of different microbatches are different bytes, else check_slots has refused them.
  bool conflict(int i, int j) {
    const bool same = item(i).microbatch == item(j).microbatch;
    const bool same_as_left = item(i).microbatch == item(j).left_microbatch;
    const size_t key = (static_cast<size_t>(item(i).segment) * plan_.segments.size() +
                        static_cast<size_t>(item(j).segment)) *
                           4 +
                       (same ? 1 : 0) + (same_as_left ? 2 : 0);
    if (known_[key] == Known::kUnknown)
      known_[key] = find_conflict(i, j) ? Known::kConflict : Known::kDisjoint;
    return known_[key] == Known::kConflict;
  }

  // Neither background nor outliving tasks are those of joined segments, which read aliases.
  bool find_conflict(int i, int j) const {
    for (const ByteUse& a : uses(i)) {
      if (!may_run_beside(i, a.task)) continue;
      for (const ByteUse& b : uses(j)) {
        const bool ordered = segment(i).tasks[a.task].stream == segment(j).tasks[b.task].stream;
        if (!ordered && touch(a, of_holder(b)) &&
            (!is_slot(b.space) || item(i).microbatch == microbatch_of(j, b)))
          return true;
      }
    }
    return false;
  }

  const SlotClass& slots_of(const ByteUse& use) const {
    return plan_.slots[static_cast<size_t>(use.space) - kNumArenas];
  }

  ByteUse of_holder(ByteUse use) const {
    if (is_slot(use.space) && slots_of(use).alias_of >= 0)
      use.space = static_cast<int64_t>(kNumArenas) + slots_of(use).alias_of;
    return use;
  }

  int microbatch_of(int i, const ByteUse& use) const {
    return item(i).microbatch_of(slots_of(use));
  }

  // In a foreground item, only tasks that outlive it may run concurrently with other items.
  bool may_run_beside(int i, int task) const {
    return segment(i).is_background || segment(i).outlives(segment(i).tasks[task].stream);
  }

  const Plan& plan_;
  const std::vector<std::vector<ByteUse>>& uses_;
  std::vector<ScheduleItem> items_;
  ItemOrder order_;
  std::vector<Known> known_;  // by segment, segment, same microbatches
  std::map<int64_t, Holder> holders_;
  std::set<std::pair<int, int>> begun_;  // slot class, microbatch
};

}  // namespace

void check_groups(const Plan& plan) {
  std::map<int, int> stream_of;
  for (const Segment& segment : plan.segments) {
    for (const Task& task : segment.tasks) {
      if (!task.rules->is_communication) continue;
      const CommGroup& group = task.rules->group(task.op.get());
      const int stream = stream_of.emplace(group.id, task.stream).first->second;
      TOK_CHECK(stream == task.stream, "{}: {} uses group {} on stream {}, others on stream {}",
                segment.name, task.rules->name, group.id, task.stream, stream);
    }
  }
}

void check_plan(const Plan& plan) {
  check_groups(plan);
  check_classes(plan);
  std::vector<std::vector<ByteUse>> uses;
  for (const Segment& segment : plan.segments) {
    uses.push_back(byte_uses(segment));
    check_bounds(plan, segment, uses.back());
    check_outliving_streams(segment, uses.back());
    check_segment(segment, uses.back(), true);
    if (std::any_of(segment.tasks.begin(), segment.tasks.end(),
                    [](const Task& t) { return t.when == When::kLastMicrobatch; }))
      check_segment(segment, uses.back(), false);
  }
  ScheduleCheck(plan, uses).run();
}

}  // namespace tokamak
