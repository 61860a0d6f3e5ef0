#include "tokamak/plan/streams.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "tokamak/core/error.h"

namespace tokamak {
namespace {

void join(StreamClocks::Clock& into, const StreamClocks::Clock& other) {
  for (size_t s = 0; s < into.size(); ++s) into[s] = std::max(into[s], other[s]);
}

}  // namespace

StreamClocks::StreamClocks(std::span<const StreamTask> tasks, bool last_microbatch)
    : tasks_(tasks), last_microbatch_(last_microbatch) {
  std::map<int, size_t> numbers;
  for (const StreamTask& task : tasks)
    streams_.push_back(numbers.emplace(task.stream, numbers.size()).first->second);
  at_stream_.assign(numbers.size(), Clock(numbers.size(), -1));
  after_.reserve(tasks.size());
}

void StreamClocks::issue(int task, std::span<const int> waits) {
  TOK_CHECK(static_cast<size_t>(task) == after_.size(), "task {} is issued after {}", task,
            after_.size());
  Clock& clock = at_stream_[stream(task)];
  const bool runs = last_microbatch_ || tasks_[task].when != When::kLastMicrobatch;
  for (const int w : runs ? waits : std::span<const int>()) {
    join(clock, after(w));
  }
  clock[stream(task)] = task;
  after_.push_back(clock);
}

namespace {

// The latest tasks of each stream: one that runs in every microbatch and, after it, one that runs
// in the last microbatch only.
struct Latest {
  struct Entry {
    StreamTask task;
    int index = 0;
  };

  std::vector<Entry> entries;

  void note(const StreamTask& task, int index) {
    std::erase_if(entries, [&](const Entry& e) {
      return e.task.stream == task.stream &&
             (task.when == When::kEvery || e.task.when == When::kLastMicrobatch);
    });
    entries.push_back({.task = task, .index = index});
  }
};

// Which tasks may have written some bytes last, and which have read them since.
struct Cell {
  int64_t end = 0;
  Latest writers;
  Latest readers;
};

// The bytes of one space, cut at every use's ends.
class Space {
 public:
  // Adds to `earlier` the tasks that this use must follow.
  void use(const ByteUse& use, const StreamTask& task, std::vector<int>& earlier) {
    if (use.begin >= use.end) return;
    auto it = cut(use.begin);
    cut(use.end);
    for (int64_t at = use.begin; at < use.end; at = (it++)->second.end) {
      if (it == cells_.end() || it->first > at) {
        const int64_t end = it == cells_.end() ? use.end : std::min(use.end, it->first);
        it = cells_.emplace_hint(it, at, Cell{.end = end});
      }
      Cell& cell = it->second;
      for (const Latest::Entry& e : cell.writers.entries) earlier.push_back(e.index);
      if (use.writes) {
        for (const Latest::Entry& e : cell.readers.entries) earlier.push_back(e.index);
      }
      (use.writes ? cell.writers : cell.readers).note(task, use.task);
    }
    // A task that follows this write follows all before it, unless the write is left out.
    if (!use.writes || task.when == When::kLastMicrobatch) return;
    cells_.erase(cells_.lower_bound(use.begin), cells_.lower_bound(use.end));
    Cell& cell = cells_.emplace(use.begin, Cell{.end = use.end}).first->second;
    cell.writers.note(task, use.task);
  }

 private:
  using Cells = std::map<int64_t, Cell>;

  // The first cell from `at` on, after cutting one that spans it.
  Cells::iterator cut(int64_t at) {
    auto it = cells_.lower_bound(at);
    if (it == cells_.begin()) return it;
    auto before = std::prev(it);
    if (before->second.end <= at) return it;
    Cell rest = before->second;
    before->second.end = at;
    return cells_.emplace_hint(it, at, std::move(rest));
  }

  Cells cells_;
};

bool has_one_stream(std::span<const StreamTask> tasks) {
  return std::all_of(tasks.begin(), tasks.end(),
                     [&](const StreamTask& t) { return t.stream == tasks[0].stream; });
}

}  // namespace

std::vector<std::vector<int>> derive_waits(std::span<const StreamTask> tasks,
                                           std::span<const ByteUse> uses) {
  std::vector<std::vector<int>> waits(tasks.size());
  if (has_one_stream(tasks)) return waits;
  // A task that runs in every microbatch may not rely on one that does not.
  StreamClocks every(tasks, false);
  StreamClocks last(tasks, true);
  std::unordered_map<int64_t, Space> spaces;
  size_t next = 0;
  for (int t = 0; t < std::ssize(tasks); ++t) {
    const StreamTask& task = tasks[t];
    std::vector<int> earlier;
    for (; next < uses.size() && uses[next].task == t; ++next)
      spaces[uses[next].space].use(uses[next], task, earlier);
    std::sort(earlier.begin(), earlier.end(), std::greater<>());
    // In the other microbatches only tasks that run in every microbatch have been waited for.
    StreamClocks::Clock known_last = last.before(t);
    StreamClocks::Clock known_every =
        task.when == When::kLastMicrobatch ? known_last : every.before(t);
    std::vector<int>& list = waits[t];
    // The latest comes first: it may know of the others, but they never know of it.
    for (const int e : earlier) {
      const StreamTask& other = tasks[e];
      const bool both_every = task.when == When::kEvery && other.when == When::kEvery;
      if (e == t || other.stream == task.stream ||
          last.has(both_every ? known_every : known_last, e))
        continue;
      list.push_back(e);
      join(known_last, last.after(e));
      join(known_every, (task.when == When::kLastMicrobatch ? last : every).after(e));
    }
    std::sort(list.begin(), list.end());
    every.issue(t, list);
    last.issue(t, list);
  }
  TOK_CHECK(next == uses.size(), "uses do not come by task");
  return waits;
}

std::vector<int> first_known(std::span<const StreamTask> tasks,
                             const std::vector<std::vector<int>>& waits) {
  const int count = static_cast<int>(tasks.size());
  std::vector<int> known(tasks.size(), count);
  StreamClocks clocks(tasks, true);
  std::map<int, std::vector<int>> open;  // by stream, in issue order
  for (int t = 0; t < count; ++t) {
    const int stream = tasks[t].stream;
    clocks.issue(t, waits[t]);
    if (stream != 0) {
      open[stream].push_back(t);
      continue;
    }
    if (waits[t].empty()) continue;
    for (auto& [s, list] : open) {
      const auto end = std::find_if(list.begin(), list.end(),
                                    [&](int o) { return !clocks.has(clocks.after(t), o); });
      for (auto it = list.begin(); it != end; ++it) known[*it] = t;
      list.erase(list.begin(), end);
    }
  }
  return known;
}

std::vector<ByteUse> byte_uses(const Segment& segment) {
  std::vector<ByteUse> uses;
  for (int t = 0; t < std::ssize(segment.tasks); ++t) {
    const Task& task = segment.tasks[t];
    const auto add = [&](const Operand& o, bool writes) {
      const int64_t space = o.arena == ArenaKind::kSlot
                                ? static_cast<int64_t>(kNumArenas) + o.slot_class
                                : static_cast<int64_t>(o.arena);
      uses.push_back({.task = t,
                      .writes = writes,
                      .space = space,
                      .begin = o.offset,
                      .end = o.offset + o.extent_bytes()});
    };
    for (const Operand& o : task.in) add(o, false);
    for (const Operand& o : task.out) add(o, true);
    if (task.workspace_bytes == 0) continue;
    uses.push_back({.task = t,
                    .writes = true,
                    .space = static_cast<int64_t>(ArenaKind::kScratch),
                    .begin = task.workspace_offset,
                    .end = task.workspace_offset + task.workspace_bytes});
  }
  return uses;
}

void set_waits(Segment& segment) {
  std::vector<StreamTask> tasks;
  for (const Task& task : segment.tasks)
    tasks.push_back({.stream = task.stream, .when = task.when});
  if (tasks.empty() || has_one_stream(tasks)) return;
  auto waits = derive_waits(tasks, byte_uses(segment));
  for (size_t t = 0; t < waits.size(); ++t) segment.tasks[t].waits = std::move(waits[t]);
}

void set_waits(Plan& plan) {
  for (Segment& segment : plan.segments) set_waits(segment);
}

}  // namespace tokamak
