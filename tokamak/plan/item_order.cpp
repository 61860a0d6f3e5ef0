#include "tokamak/plan/item_order.h"

#include <algorithm>
#include <map>
#include <set>

#include "tokamak/core/error.h"

namespace tokamak {

ItemOrder::ItemOrder(const Plan& plan, const std::vector<ScheduleItem>& items) {
  std::map<int, size_t> numbers{{0, 0}};
  for (const Segment& segment : plan.segments) {
    std::set<size_t> streams;
    std::set<size_t> outliving;
    for (const Task& task : segment.tasks) {
      TOK_CHECK(task.stream != 0 || !segment.is_background, "{}: {} runs in the background",
                segment.name, task.rules->name);
      const size_t stream = numbers.emplace(task.stream, numbers.size()).first->second;
      (segment.outlives(task.stream) ? outliving : streams).insert(stream);
    }
    streams_of_.emplace_back(streams.begin(), streams.end());
    outliving_of_.emplace_back(outliving.begin(), outliving.end());
  }
  const size_t n = num_streams_ = numbers.size();
  const auto join = [n](int* into, const int* other) {
    for (size_t s = 0; s < n; ++s) into[s] = std::max(into[s], other[s]);
  };
  std::vector<int> now(n, -1);
  std::vector<int> stream(n * n, -1);
  std::vector<int> at_end(items.size() * n);
  segment_of_.resize(items.size());
  at_start_.resize(items.size() * n);
  foreground_.resize(items.size() * n);
  for (size_t i = 0; i < items.size(); ++i) {
    const ScheduleItem& item = items[i];
    const auto segment = static_cast<size_t>(item.segment);
    const bool is_background = plan.segments[segment].is_background;
    segment_of_[i] = item.segment;
    int* const start = &at_start_[i * n];
    std::copy(now.begin(), now.end(), start);
    for (const int w : item.waits) {
      TOK_CHECK(w >= 0 && w < static_cast<int>(i), "item {} waits for {}", i, w);
      const int awaited = segment_of_[w];
      TOK_CHECK(plan.segments[awaited].is_background || !outliving_of_[awaited].empty(),
                "item {} waits for {}", i, w);
      join(start, &at_end[static_cast<size_t>(w) * n]);
    }
    if (!is_background) std::copy(start, start + n, now.begin());
    std::copy(now.begin(), now.end(), &foreground_[i * n]);
    int* const end = &at_end[i * n];
    std::copy(start, start + n, end);
    for (const size_t s : streams_of_[segment]) {
      join(&stream[s * n], start);
      stream[s * n + s] = static_cast<int>(i);
      join(end, &stream[s * n]);
    }
    if (!is_background) std::copy(end, end + n, now.begin());
    for (const size_t s : outliving_of_[segment]) {
      join(&stream[s * n], start);
      stream[s * n + s] = static_cast<int>(i);
      join(end, &stream[s * n]);
    }
  }
}

bool ItemOrder::covers(const std::vector<int>& clocks, int at, int item,
                       const std::vector<size_t>& streams) const {
  const int* const clock = &clocks[static_cast<size_t>(at) * num_streams_];
  return std::all_of(streams.begin(), streams.end(), [&](size_t s) { return clock[s] >= item; });
}

bool ItemOrder::has_ended(int earlier, int item) const {
  return covers(at_start_, item, earlier, streams_of_[segment_of(earlier)]);
}

bool ItemOrder::has_ended_wholly(int earlier, int item) const {
  return has_ended(earlier, item) &&
         covers(at_start_, item, earlier, outliving_of_[segment_of(earlier)]);
}

bool ItemOrder::is_known(int item, int at) const {
  return covers(foreground_, at, item, streams_of_[segment_of(item)]);
}

int ItemOrder::known_from(int item, int from) const {
  int i = from;
  while (i < std::ssize(segment_of_) && !is_known(item, i)) ++i;
  return i;
}

}  // namespace tokamak
