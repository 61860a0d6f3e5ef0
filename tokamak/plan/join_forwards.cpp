#include "tokamak/plan/join_forwards.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "tokamak/core/error.h"
#include "tokamak/graph/cover_collectives.h"
#include "tokamak/plan/segments.h"
#include "tokamak/plan/streams.h"

namespace tokamak {
namespace {

void set_scratch_bytes(Plan& plan, int64_t bytes) {
  bytes = (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
  int64_t& arena = plan.arena_bytes[ArenaKind::kScratch];
  for (MemoryRow& row : plan.memory) {
    if (row.owner == kTemporariesRow) row.bytes += bytes - arena;
  }
  arena = bytes;
}

class Joiner {
 public:
  Joiner(Plan& plan, const Rates& rates)
      : plan_(plan),
        rates_(rates),
        scratch_(plan.arena_bytes[ArenaKind::kScratch]),
        num_classes_(plan.slots.size()) {}

  void join(int forward, int weight) {
    const Segment& first = plan_.segments[forward];
    const Segment& second = plan_.segments[weight];
    Segment joined{.name = fmt::format("{} and {}", first.name, second.name),
                   .runs = Segment::Runs::kPerMicrobatch,
                   .joined = JoinedSegments{.forward = forward, .weight = weight}};
    std::vector<Task> weights;
    for (const Task& task : second.tasks) {
      if (task.when == When::kEvery) weights.push_back(moved(task));
    }
    joined.tasks = between(first.tasks, std::move(weights));
    set_waits(joined);
    plan_.segments.push_back(std::move(joined));
  }

 private:
  // Returns the forward's tasks with weight gradients in front of those that wait for a covered
  // collective: those that take about as long as it, and all that are left before the last one.
  std::vector<Task> between(const std::vector<Task>& forward, std::vector<Task> weights) const {
    std::map<size_t, double> wanted;  // by task of the forward: operations of weight gradients
    for (size_t t = 0; t < forward.size(); ++t) {
      if (forward[t].stream != 0) continue;
      for (const int w : forward[t].waits) {
        const Task& before = forward[w];
        if (!is_covered_in_forward(*before.rules, before.label, before.stream)) continue;
        double flops = flops_beside(cost_of(before), before.stream, rates_);
        for (size_t other = static_cast<size_t>(w) + 1; other < t; ++other) {
          if (forward[other].stream == 0) flops -= cost_of(forward[other]).flops;
        }
        if (flops > 0.0) wanted[t] = std::max(wanted[t], flops);
      }
    }
    const size_t last = wanted.empty() ? 0 : wanted.rbegin()->first;
    std::vector<Task> all;
    auto next = weights.begin();
    const auto emit = [&] {
      const double flops = cost_of(*next).flops;
      all.push_back(std::move(*next++));
      return flops;
    };
    for (size_t t = 0; t < forward.size(); ++t) {
      const auto at = wanted.find(t);
      double bare = at == wanted.end() ? 0.0 : at->second;
      const double most_bare = kMostBare * bare;
      while (next != weights.end() && (bare > most_bare || t == last)) bare -= emit();
      all.push_back(forward[t]);
    }
    return all;
  }

  // Returns a task of weight gradients as it runs in a joined segment.
  Task moved(Task task) {
    task.waits.clear();
    for (std::vector<Operand>* list : {&task.in, &task.out}) {
      for (Operand& o : *list) {
        if (o.arena == ArenaKind::kScratch) {
          o.offset += scratch_;
          hold_scratch(o.offset + o.extent_bytes());
        }
        if (o.arena == ArenaKind::kSlot) o.slot_class = alias(o.slot_class);
      }
    }
    if (task.workspace_bytes > 0) {
      task.workspace_offset += scratch_;
      hold_scratch(task.workspace_offset + task.workspace_bytes);
    }
    return task;
  }

  void hold_scratch(int64_t end) {
    if (end > plan_.arena_bytes[ArenaKind::kScratch]) set_scratch_bytes(plan_, end);
  }

  int alias(int slot_class) {
    const auto [at, is_new] = aliases_.try_emplace(slot_class, 0);
    if (!is_new) return at->second;
    TOK_CHECK(static_cast<size_t>(slot_class) < num_classes_, "slot class {}", slot_class);
    at->second = static_cast<int>(plan_.slots.size());
    SlotClass slots = plan_.slots[slot_class];
    slots.alias_of = slot_class;
    plan_.slots.push_back(slots);
    return at->second;
  }

  Plan& plan_;
  const Rates& rates_;
  int64_t scratch_;  // of all other segments
  size_t num_classes_;
  std::map<int, int> aliases_;
};

}  // namespace

void join_forwards(Plan& plan, const std::vector<PipelineItem>& items, const Rates& rates) {
  const std::vector<int> joins = forwards_to_join(plan.segments, items);
  std::map<PipelinePoint, int> index;
  for (size_t s = 0; s < plan.segments.size(); ++s) {
    if (plan.segments[s].point) index[*plan.segments[s].point] = static_cast<int>(s);
  }
  Joiner joiner(plan, rates);
  std::set<std::pair<int, int>> joined;
  for (size_t i = 0; i < items.size(); ++i) {
    if (joins[i] < 0) continue;
    const auto forward = index.find({PipelineItemKind::kForward, items[joins[i]].stage});
    const auto weight = index.find({PipelineItemKind::kBackwardWeight, items[i].stage});
    if (forward == index.end() || weight == index.end()) continue;
    if (joined.emplace(forward->second, weight->second).second)
      joiner.join(forward->second, weight->second);
  }
}

bool part_forwards(Plan& plan) {
  const size_t removed =
      std::erase_if(plan.segments, [](const Segment& s) { return s.joined.has_value(); });
  std::erase_if(plan.slots, [](const SlotClass& s) { return s.alias_of >= 0; });
  if (removed == 0) return false;
  int64_t scratch = 0;
  for (const Segment& segment : plan.segments) scratch = std::max(scratch, scratch_bytes(segment));
  set_scratch_bytes(plan, scratch);
  return true;
}

}  // namespace tokamak
