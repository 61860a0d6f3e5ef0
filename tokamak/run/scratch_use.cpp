#include "tokamak/run/scratch_use.h"

#include <algorithm>
#include <span>

namespace tokamak {
namespace {

// Bytes that tasks first .. last need.
struct Life {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t first = 0;
  int64_t last = 0;

  bool meets(const Life& o) const { return begin < o.end && o.begin < end; }
};

std::vector<Life> ranges_of(std::span<const Operand> operands, int64_t task) {
  std::vector<Life> ranges;
  for (const Operand& o : operands) {
    const int64_t bytes = o.arena == ArenaKind::kScratch ? o.extent_bytes() : 0;
    if (bytes > 0)
      ranges.push_back({.begin = o.offset, .end = o.offset + bytes, .first = task, .last = task});
  }
  return ranges;
}

// Cuts the bytes that a task writes out of the open lives, which end there.
void overwrite(std::vector<Life>& open, const Life& written, std::vector<Life>& closed) {
  std::vector<Life> kept;
  const auto keep = [&](Life life, int64_t begin, int64_t end) {
    life.begin = begin;
    life.end = end;
    if (begin < end) kept.push_back(life);
  };
  for (const Life& life : open) {
    if (!life.meets(written)) {
      kept.push_back(life);
      continue;
    }
    keep(life, life.begin, written.begin);
    keep(life, written.end, life.end);
    Life inside = life;
    inside.begin = std::max(life.begin, written.begin);
    inside.end = std::min(life.end, written.end);
    inside.last = std::min(life.last, written.first - 1);
    if (inside.first <= inside.last) closed.push_back(inside);
  }
  open = std::move(kept);
}

}  // namespace

std::vector<int64_t> scratch_in_use(const Segment& segment) {
  std::vector<Life> open;
  std::vector<Life> closed;
  std::vector<int64_t> use(segment.tasks.size() + 1);
  const auto add = [&](int64_t first, int64_t last, int64_t bytes) {
    use[first] += bytes;
    use[static_cast<size_t>(last) + 1] -= bytes;
  };
  for (size_t i = 0; i < segment.tasks.size(); ++i) {
    const Task& task = segment.tasks[i];
    const auto t = static_cast<int64_t>(i);
    for (const Life& read : ranges_of(task.in, t)) {
      for (Life& life : open) {
        if (life.meets(read)) life.last = t;
      }
    }
    for (const Life& written : ranges_of(task.out, t)) {
      overwrite(open, written, closed);
      open.push_back(written);
    }
    add(t, t, task.workspace_bytes);
  }
  closed.insert(closed.end(), open.begin(), open.end());
  for (const Life& life : closed) add(life.first, life.last, life.end - life.begin);
  for (size_t t = 1; t < use.size(); ++t) use[t] += use[t - 1];
  use.pop_back();
  return use;
}

}  // namespace tokamak
