#include "tokamak/plan/outliving.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "tokamak/plan/streams.h"

namespace tokamak {
namespace {

bool touches_state_alone(const Task& task) {
  const auto is_state = [](const Operand& o) { return o.arena == ArenaKind::kState; };
  return task.workspace_bytes == 0 && std::all_of(task.in.begin(), task.in.end(), is_state) &&
         std::all_of(task.out.begin(), task.out.end(), is_state);
}

// Returns the streams other than 0 of which all tasks run only `when` and touch State alone.
std::vector<int> streams_that_may_outlive(const Segment& segment, When when) {
  std::set<int> may;
  std::set<int> may_not{0};
  for (const Task& task : segment.tasks) {
    const bool is_such = task.when == when && touches_state_alone(task);
    (is_such ? may : may_not).insert(task.stream);
  }
  std::vector<int> streams;
  std::set_difference(may.begin(), may.end(), may_not.begin(), may_not.end(),
                      std::back_inserter(streams));
  return streams;
}

// Bytes [first, second) of State, sorted and disjoint.
using Ranges = std::vector<std::pair<int64_t, int64_t>>;

// Returns the ranges that the segment's tasks touch, or only those that outlive its items.
Ranges state_ranges(const Segment& segment, bool of_outliving) {
  Ranges all;
  for (const ByteUse& use : byte_uses(segment)) {
    const int stream = segment.tasks[use.task].stream;
    const bool is_state = use.space == static_cast<int64_t>(ArenaKind::kState);
    if (is_state && use.begin < use.end && (!of_outliving || segment.outlives(stream)))
      all.emplace_back(use.begin, use.end);
  }
  std::sort(all.begin(), all.end());
  Ranges apart;
  for (const auto& [begin, end] : all) {
    if (apart.empty() || begin > apart.back().second) {
      apart.emplace_back(begin, end);
    } else {
      apart.back().second = std::max(apart.back().second, end);
    }
  }
  return apart;
}

bool overlap(const Ranges& a, const Ranges& b) {
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (a[i].first < b[j].second && b[j].first < a[i].second) return true;
    a[i].second < b[j].second ? ++i : ++j;
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
    const Ranges outliving = state_ranges(segment, true);
    for (size_t j = i + 1; j < plan.items.size(); ++j) {
      const auto s = static_cast<size_t>(plan.items[j].segment);
      if (!touched[s]) touched[s] = state_ranges(plan.segments[s], false);
      if (!overlap(outliving, *touched[s])) continue;
      plan.items[j].waits.push_back(static_cast<int>(i));
      if (!plan.segments[s].is_background) break;
    }
  }
}

}  // namespace tokamak
