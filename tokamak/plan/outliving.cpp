#include "tokamak/plan/outliving.h"

#include <algorithm>
#include <optional>
#include <set>
#include <tuple>

#include "tokamak/plan/streams.h"

namespace tokamak {
namespace {

// Whether the task touches only what lies in place for the whole step: State, and what once-a-step
// segments carry.
bool touches_what_stays(const Task& task, bool is_carried) {
  const auto stays = [&](const Operand& o) {
    return o.arena == ArenaKind::kState || (is_carried && o.arena == ArenaKind::kCarried);
  };
  return task.workspace_bytes == 0 && std::all_of(task.in.begin(), task.in.end(), stays) &&
         std::all_of(task.out.begin(), task.out.end(), stays);
}

// Returns the streams other than 0 of which all tasks run only `when` and touch what stays.
std::vector<int> streams_that_may_outlive(const Segment& segment, When when) {
  const bool is_carried = segment.runs == Segment::Runs::kOnceBefore;
  std::set<int> may;
  std::set<int> may_not{0};
  for (const Task& task : segment.tasks) {
    const bool is_such = task.when == when && touches_what_stays(task, is_carried);
    (is_such ? may : may_not).insert(task.stream);
  }
  std::vector<int> streams;
  std::set_difference(may.begin(), may.end(), may_not.begin(), may_not.end(),
                      std::back_inserter(streams));
  return streams;
}

// Bytes of State or of the carried arena.
struct Range {
  int64_t space = 0;
  int64_t begin = 0;
  int64_t end = 0;
};

// Sorted and disjoint.
using Ranges = std::vector<Range>;

bool stays(const ByteUse& use) {
  return use.space == static_cast<int64_t>(ArenaKind::kState) ||
         use.space == static_cast<int64_t>(ArenaKind::kCarried);
}

// Returns the ranges that the segment's tasks touch, or only those that outlive its items.
Ranges ranges_of(const Segment& segment, bool of_outliving) {
  Ranges all;
  for (const ByteUse& use : byte_uses(segment)) {
    const int stream = segment.tasks[use.task].stream;
    if (stays(use) && use.begin < use.end && (!of_outliving || segment.outlives(stream)))
      all.push_back({.space = use.space, .begin = use.begin, .end = use.end});
  }
  std::sort(all.begin(), all.end(), [](const Range& a, const Range& b) {
    return std::tie(a.space, a.begin) < std::tie(b.space, b.begin);
  });
  Ranges apart;
  for (const Range& range : all) {
    if (apart.empty() || range.space != apart.back().space || range.begin > apart.back().end) {
      apart.push_back(range);
    } else {
      apart.back().end = std::max(apart.back().end, range.end);
    }
  }
  return apart;
}

bool overlap(const Ranges& a, const Ranges& b) {
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (a[i].space == b[j].space && a[i].begin < b[j].end && b[j].begin < a[i].end) return true;
    std::tie(a[i].space, a[i].end) < std::tie(b[j].space, b[j].end) ? ++i : ++j;
  }
  return false;
}

}  // namespace

void let_reductions_outlive(Plan& plan) {
  for (Segment& segment : plan.segments) {
    if (segment.runs == Segment::Runs::kPerMicrobatch && !segment.is_background)
      segment.outliving_streams = streams_that_may_outlive(segment, When::kLastMicrobatch);
  }
}

void let_gathers_outlive(Plan& plan) {
  for (Segment& segment : plan.segments) {
    if (segment.runs == Segment::Runs::kOnceBefore)
      segment.outliving_streams = streams_that_may_outlive(segment, When::kEvery);
  }
}

void wait_for_outliving(Plan& plan) {
  std::vector<std::optional<Ranges>> touched(plan.segments.size());
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const Segment& segment = plan.segments[plan.items[i].segment];
    if (!plan.items[i].is_last || segment.outliving_streams.empty()) continue;
    const Ranges outliving = ranges_of(segment, true);
    for (size_t j = i + 1; j < plan.items.size(); ++j) {
      const auto s = static_cast<size_t>(plan.items[j].segment);
      if (!touched[s]) touched[s] = ranges_of(plan.segments[s], false);
      if (!overlap(outliving, *touched[s])) continue;
      plan.items[j].waits.push_back(static_cast<int>(i));
      if (!plan.segments[s].is_background) break;
    }
  }
}

}  // namespace tokamak
