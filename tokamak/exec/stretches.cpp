#include "tokamak/exec/stretches.h"

namespace tokamak {
namespace {

bool is_plain(const BoundTask& task) {
  return task.stream == 0 && !task.is_communication;
}

// Whether the host need not act between the two.
bool follows(const BoundTask& task, const BoundTask& before) {
  return is_plain(task) && is_plain(before) && task.phase == before.phase && task.waits.empty() &&
         !before.is_awaited;
}

size_t count_tasks(const BoundSegment& segment, const Stretch& stretch, bool is_last) {
  size_t n = 0;
  for (size_t t = stretch.begin; t < stretch.end; ++t)
    n += is_last || !segment.tasks[t].last_microbatch_only ? 1 : 0;
  return n;
}

}  // namespace

std::vector<Stretch> cut_stretches(const BoundSegment& segment) {
  std::vector<Stretch> stretches;
  for (size_t t = 0; t < segment.tasks.size(); ++t) {
    const BoundTask& task = segment.tasks[t];
    if (t > 0 && follows(task, segment.tasks[t - 1])) {
      stretches.back().end = t + 1;
    } else {
      stretches.push_back({.begin = t, .end = t + 1, .is_whole = is_plain(task)});
    }
  }
  return stretches;
}

Replays::Replays(const BoundSegment& segment)
    : segment_(segment), stretches_(cut_stretches(segment)) {
  for (const Stretch& stretch : stretches_) {
    const auto is_worth = [&](bool is_last) {
      return stretch.is_whole && count_tasks(segment, stretch, is_last) >= kLeastTasks;
    };
    is_worth_.push_back({is_worth(false), is_worth(true)});
  }
  recordings_.resize(segment.bindings.size() * 4 * stretches_.size());
}

Replays::Recording* Replays::find(size_t k, const BoundSegment::Binding& binding,
                                  const ScheduleItem& item) {
  if (!is_worth_[k][item.is_last ? 1 : 0]) return nullptr;
  const auto b = static_cast<size_t>(&binding - segment_.bindings.data());
  const size_t kind = 4 * b + (item.is_first ? 2 : 0) + (item.is_last ? 1 : 0);
  return &recordings_[kind * stretches_.size() + k];
}

}  // namespace tokamak
