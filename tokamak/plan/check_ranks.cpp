#include <algorithm>
#include <map>
#include <utility>

#include <fmt/ranges.h>

#include "tokamak/core/error.h"
#include "tokamak/plan/plan.h"

namespace tokamak {
namespace {

// What a stream does next: a task, or the beginning or end of an item on stream 0.
struct Event {
  const Task* task = nullptr;  // of communication; null for all others
  int microbatch = 0;
  std::vector<int> after;  // events of other streams of its rank
  bool is_done = false;
};

// One rank's step: for each stream its events in order.
struct RankRun {
  const Plan* plan = nullptr;
  std::vector<Event> events;
  std::map<int, std::vector<int>> streams;
  std::map<int, size_t> next;  // by stream

  int add(int stream, Event event) {
    const int id = static_cast<int>(events.size());
    events.push_back(std::move(event));
    streams[stream].push_back(id);
    return id;
  }
};

// The last event on each stream of an item: on all streams, and on those that its end waits for.
struct Ends {
  std::vector<int> all;
  std::vector<int> joined;
};

Ends add_tasks(RankRun& run, const Segment& segment, const ScheduleItem& item,
               const std::vector<int>& begins_after) {
  std::vector<int> of_task;
  std::map<int, int> last;
  for (const Task& task : segment.tasks) {
    const bool runs = item.is_last || task.when != When::kLastMicrobatch;
    Event event{.task = runs && task.rules->is_communication ? &task : nullptr,
                .microbatch = item.microbatch};
    if (task.stream != 0 && !last.contains(task.stream)) event.after = begins_after;
    for (const int w : runs ? task.waits : std::vector<int>()) event.after.push_back(of_task[w]);
    of_task.push_back(run.add(task.stream, std::move(event)));
    last[task.stream] = of_task.back();
  }
  Ends ends;
  for (const auto& [stream, event] : last) {
    ends.all.push_back(event);
    if (!segment.outlives(stream)) ends.joined.push_back(event);
  }
  return ends;
}

RankRun unfold(const Plan& plan, int num_microbatches) {
  RankRun run{.plan = &plan};
  std::vector<Ends> item_ends;
  for (const ScheduleItem& item : plan.schedule(num_microbatches)) {
    const Segment& segment = plan.segments[item.segment];
    std::vector<int> after;
    for (const int w : item.waits) {
      const std::vector<int>& ends = item_ends.at(static_cast<size_t>(w)).all;
      after.insert(after.end(), ends.begin(), ends.end());
    }
    if (segment.is_background) {
      after.push_back(run.add(0, {}));
      item_ends.push_back(add_tasks(run, segment, item, after));
      continue;
    }
    const int begin = run.add(0, {.after = after});
    item_ends.push_back(add_tasks(run, segment, item, {begin}));
    run.add(0, {.after = item_ends.back().joined});
  }
  return run;
}

using GroupKey = std::pair<std::vector<int>, std::string>;

// A member that has come to a collective.
struct Arrival {
  int rank = 0;
  int event = 0;
  const Task* task = nullptr;
  int microbatch = 0;
};

std::string show(const Task& task) {
  const Operand& o = task.in.empty() ? task.out[0] : task.in[0];
  return fmt::format("{} of {}", task.rules->name, to_string(o.type));
}

// Returns the op that the other members must enter.
std::string_view partner_of(std::string_view op) {
  if (op == "send") return "recv";
  return op == "recv" ? "send" : op;
}

// Describes the collective that a member enters and the value that it serves, since collectives of
// equal types may serve different values.
std::string show(const Arrival& a) {
  const Label& label = a.task->label;
  const Origin& origin = label.origin;
  std::string of = origin.state >= 0 ? fmt::format("state {}", origin.state)
                                     : fmt::format("value {}", origin.value);
  if (origin.part > 0) of += fmt::format(" (part {})", origin.part);
  return fmt::format("{} for {} of block {}, {}, in microbatch {}", show(*a.task), of, label.block,
                     name_of(label.phase), a.microbatch);
}

bool enter_the_same(const Arrival& a, const Arrival& b) {
  const auto type = [](const Task& task) {
    const Operand& o = task.in.empty() ? task.out[0] : task.in[0];
    return std::pair(o.type.dtype, o.type.numel());
  };
  const Label& of_a = a.task->label;
  const Label& of_b = b.task->label;
  // A message joins two places of the model.
  const bool is_message = partner_of(b.task->rules->name) != b.task->rules->name;
  const bool same_place = is_message || (of_a.phase == of_b.phase && of_a.block == of_b.block);
  return a.task->rules->name == partner_of(b.task->rules->name) && type(*a.task) == type(*b.task) &&
         same_place && of_a.origin == of_b.origin && a.microbatch == b.microbatch;
}

void check_same(const GroupKey& group, const std::vector<Arrival>& members) {
  for (size_t k = 1; k < members.size(); ++k) {
    TOK_CHECK(enter_the_same(members[k], members[0]), "group {}: rank {} enters {}, rank {} {}",
              group.second, members[0].rank, show(members[0]), members[k].rank, show(members[k]));
  }
}

// Runs all ranks' streams until nothing moves.
class World {
 public:
  World(std::span<const Plan* const> plans, int num_microbatches) {
    for (const Plan* plan : plans) ranks_.push_back(unfold(*plan, num_microbatches));
  }

  void run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < std::ssize(ranks_); ++rank) {
        for (const auto& [stream, events] : ranks_[rank].streams) {
          while (step(rank, stream)) moved = true;
        }
      }
    }
    std::vector<std::string> stuck;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      RankRun& run = ranks_[rank];
      for (const auto& [stream, events] : run.streams) {
        if (run.next[stream] == events.size()) continue;
        const Task* task = run.events[events[run.next[stream]]].task;
        stuck.push_back(fmt::format("rank {} stream {}: {}", rank, stream,
                                    task == nullptr ? "waits for another stream" : show(*task)));
      }
    }
    TOK_CHECK(stuck.empty(), "ranks wait for each other: {}", fmt::join(stuck, ", "));
  }

 private:
  // Moves one stream by one event if it can.
  bool step(int rank, int stream) {
    RankRun& run = ranks_[rank];
    const auto& list = run.streams[stream];
    size_t& next = run.next[stream];
    if (next == list.size()) return false;
    Event& event = run.events[list[next]];
    const auto is_done = [&](int e) { return run.events[e].is_done; };
    if (!event.is_done) {
      if (!std::all_of(event.after.begin(), event.after.end(), is_done)) return false;
      if (event.task != nullptr && !arrive(rank, list[next], *event.task, event.microbatch))
        return false;
      event.is_done = true;
    }
    ++next;
    return true;
  }

  // Returns whether all members have come.
  bool arrive(int rank, int event, const Task& task, int microbatch) {
    const GroupTable& groups = ranks_[rank].plan->groups;
    const int id = task.rules->group(task.op.get()).id;
    TOK_CHECK(id >= 0 && id < std::ssize(groups.entries), "rank {}: {} names group {}", rank,
              task.rules->name, id);
    const GroupTable::Entry& entry = groups.entries[id];
    const GroupKey key{entry.ranks, entry.name};
    auto& members = arrived_[key];
    const auto is_here = [&](const Arrival& a) { return a.rank == rank; };
    if (std::none_of(members.begin(), members.end(), is_here))
      members.push_back({.rank = rank, .event = event, .task = &task, .microbatch = microbatch});
    if (members.size() < entry.ranks.size()) return false;
    check_same(key, members);
    for (const Arrival& a : members) ranks_[a.rank].events[a.event].is_done = true;
    members.clear();
    return true;
  }

  std::vector<RankRun> ranks_;
  std::map<GroupKey, std::vector<Arrival>> arrived_;
};

}  // namespace

void check_ranks(std::span<const Plan* const> plans, int num_microbatches) {
  World(plans, num_microbatches).run();
}

}  // namespace tokamak
