#include "tokamak/price/step/step_price.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "tokamak/core/enum_array.h"
#include "tokamak/core/error.h"
#include "tokamak/price/step/segment_price.h"

namespace tokamak::price {
namespace {

const GroupTable& groups_of(const PricedRank& rank) {
  return rank.groups != nullptr ? *rank.groups : rank.plan->groups;
}

// Which communication tasks of different ranks meet.
class TaskMeetings {
 public:
  explicit TaskMeetings(std::span<const PricedRank> ranks) {
    std::map<std::pair<std::vector<int>, std::string>, int> numbers;
    for (const PricedRank& rank : ranks) {
      auto& groups = groups_.emplace_back();
      for (const GroupTable::Entry& group : groups_of(rank).entries) {
        const int next = static_cast<int>(numbers.size());
        groups.push_back(numbers.emplace(std::pair(group.ranks, group.name), next).first->second);
      }
    }
    members_.assign(numbers.size(), 0);
    met_.resize(numbers.size());
    for (const auto& groups : groups_) {
      for (const int g : groups) ++members_[g];
      counts_.emplace_back(numbers.size(), 0);
    }
  }

  /// Whether other priced ranks take part.
  bool is_shared(size_t rank, const Task& task) const {
    return task.rules->is_communication && members_[group_of(rank, task)] > 1;
  }

  /// Returns the meeting of this rank's next run of `task`. REQUIRES: is_shared().
  int next(size_t rank, const Task& task) {
    const size_t group = group_of(rank, task);
    const auto n = static_cast<size_t>(counts_[rank][group]++);
    if (n == met_[group].size()) {
      met_[group].push_back(static_cast<int>(sizes_.size()));
      sizes_.push_back(members_[group]);
    }
    return met_[group][n];
  }

  const std::vector<int>& sizes() const { return sizes_; }

 private:
  size_t group_of(size_t rank, const Task& task) const {
    const int id = task.rules->group(task.op.get()).id;
    return static_cast<size_t>(groups_[rank].at(static_cast<size_t>(id)));
  }

  std::vector<std::vector<int>> groups_;  // by rank: numbers of its groups
  std::vector<int> members_;              // by group: priced ranks
  std::vector<std::vector<int>> counts_;  // by rank and group
  std::vector<std::vector<int>> met_;     // by group
  std::vector<int> sizes_;                // by meeting
};

// One rank's step as Works. A foreground item that meets no other rank is one Work.
class RankStep {
 public:
  RankStep(const PricedRank& rank, size_t index, int num_microbatches, const Machine& machine,
           const PriceOptions& options, TaskMeetings& meetings)
      : plan_(*rank.plan),
        index_(index),
        prices_(plan_, groups_of(rank), machine, options),
        meetings_(meetings),
        software_(machine.software) {
    for (const Segment& segment : plan_.segments) {
      const auto& tasks = segment.tasks;
      meets_.push_back(std::any_of(tasks.begin(), tasks.end(), [&](const Task& task) {
        return meetings.is_shared(index, task);
      }));
    }
    const std::vector<ScheduleItem> items = plan_.schedule(num_microbatches);
    std::vector<int64_t> runs_of_segment(plan_.segments.size(), 0);
    for (const ScheduleItem& item : items) ++runs_of_segment[item.segment];
    prices_.settle_clock(runs_of_segment);
    for (const ScheduleItem& item : items) add(item);
  }

  RankWorks works;

  /// Returns the number of Works in segments that were priced by themselves.
  int64_t num_events() const { return prices_.num_events(); }

  /// Adds what all whole items together were spent on. They took `took_s`, which includes the delay
  /// by messages that overlap their compute.
  void add_whole_items(double took_s, EnumArray<Category, double, kNumCategories>& by_category,
                       double& hidden_s) {
    EnumArray<Category, double, kNumCategories> alone{};
    for (const Item& item : items_) {
      if (!item.is_whole) continue;
      const SegmentPrice& price = prices_.price(item.run);
      for (size_t c = 0; c < kNumCategories; ++c) alone[c] += price.by_category[c];
      hidden_s += price.hidden_comm_s;
    }
    constexpr Category kComputing[] = {Category::kGemm, Category::kAttention,
                                       Category::kMemoryBound, Category::kOptimizer};
    double computing_s = 0.0;
    for (const Category c : kComputing) computing_s += alone[c];
    const double more_s = took_s - std::accumulate(alone.begin(), alone.end(), 0.0);
    if (computing_s > 0.0) {
      for (const Category c : kComputing) alone[c] *= 1.0 + more_s / computing_s;
    }
    for (size_t c = 0; c < kNumCategories; ++c) by_category[c] += alone[c];
  }

  void add_spans(const RankTimes& times, std::vector<PricedSpan>& spans) {
    const auto first = static_cast<std::ptrdiff_t>(spans.size());
    for (const Item& item : items_) {
      const auto& tasks = plan_.segments[item.run.segment].tasks;
      const auto w = static_cast<size_t>(item.first_work);
      for (size_t t = 0; t < tasks.size(); ++t) {
        if (!runs(tasks[t], item.run.is_last)) continue;
        PricedSpan span{.rank = static_cast<int>(index_),
                        .stream = tasks[t].stream,
                        .task = &tasks[t],
                        .microbatch = tasks[t].label.phase == Phase::kWeightGradient
                                          ? item.left_microbatch
                                          : item.microbatch};
        if (item.is_whole) {
          const SegmentPrice& price = prices_.price(item.run);
          const double longer = stretch(times, w, price);
          span.begin_s = times.begin_s[w] + longer * price.begin_s[t];
          span.end_s = times.begin_s[w] + longer * price.end_s[t];
        } else {
          span.begin_s = times.begin_s[w + t];
          span.end_s = times.end_s[w + t];
        }
        spans.push_back(span);
      }
    }
    std::stable_sort(
        spans.begin() + first, spans.end(),
        [](const PricedSpan& a, const PricedSpan& b) { return a.begin_s < b.begin_s; });
  }

 private:
  struct Item {
    SegmentRun run;
    int microbatch = 0;
    int left_microbatch = 0;  // of weight gradients
    int first_work = 0;       // of the item, or of its tasks
    bool is_whole = false;
  };

  // Returns the factor by which messages that overlap a whole item stretch its tasks.
  static double stretch(const RankTimes& times, size_t work, const SegmentPrice& alone) {
    const double took_s = times.end_s[work] - times.begin_s[work];
    return alone.seconds > 0.0 ? took_s / alone.seconds : 1.0;
  }

  // An item's last Works: those before its end, and those that may outlive it.
  struct Ends {
    std::vector<int> joined;
    std::vector<int> outliving;
  };

  void add(const ScheduleItem& item) {
    const Segment& segment = plan_.segments[item.segment];
    const SegmentRun run{
        .segment = item.segment, .is_first = item.is_first, .is_last = item.is_last};
    std::vector<int> after;
    for (const int w : item.waits) {
      const Ends& ends = ends_.at(static_cast<size_t>(w));
      after.insert(after.end(), ends.joined.begin(), ends.joined.end());
      after.insert(after.end(), ends.outliving.begin(), ends.outliving.end());
    }
    if (phase_of(segment) == Phase::kUpdate) after.insert(after.end(), free_.begin(), free_.end());
    const bool is_whole =
        !segment.is_background && !meets_[item.segment] && !has_free_work(run, segment);
    items_.push_back(
        {.run = run,
         .microbatch = item.microbatch,
         .left_microbatch = item.left_microbatch >= 0 ? item.left_microbatch : item.microbatch,
         .is_whole = is_whole});
    ends_.emplace_back();
    if (is_whole) {
      const SegmentPrice& price = prices_.price(run);
      items_.back().first_work = works.add({.seconds = price.seconds,
                                            .is_whole_item = true,
                                            .held_factor = price.held_factor,
                                            .stream = 0},
                                           after);
      foreground_ = items_.back().first_work;
      return;
    }
    if (segment.is_background) {
      if (foreground_ >= 0) after.push_back(foreground_);
      add_tasks(run, segment, after);
      return;
    }
    const int begin = works.add({.stream = 0}, after);
    add_tasks(run, segment, {begin});
    const SegmentPrice& alone = prices_.price(run);
    foreground_ = works.add({.seconds = alone.host_s, .category = Category::kHost, .stream = 0},
                            ends_.back().joined);
  }

  static Phase phase_of(const Segment& segment) {
    return segment.tasks.empty() ? Phase::kForward : segment.tasks[0].label.phase;
  }

  // Whether the rank continues during the task until an item waits for it.
  bool is_outliving(const Segment& segment, const Task& task) const {
    return software_.reduction_overlap != 0 && segment.outlives(task.stream);
  }

  // Whether the rank continues during the task until a block's first forward.
  bool is_free_gather(const Task& task) const {
    return software_.gather_overlap != 0 && task.rules->is_communication &&
           task.label.phase == Phase::kUnshard;
  }

  bool has_free_work(const SegmentRun& run, const Segment& segment) const {
    const bool uses_gathered =
        run.is_first && !gathered_.empty() && phase_of(segment) == Phase::kForward;
    return uses_gathered ||
           std::any_of(segment.tasks.begin(), segment.tasks.end(), [&](const Task& task) {
             return runs(task, run.is_last) &&
                    (is_outliving(segment, task) || is_free_gather(task));
           });
  }

  void add_tasks(const SegmentRun& run, const Segment& segment, const std::vector<int>& begin) {
    const auto first = works.works.size();
    items_.back().first_work = static_cast<int>(first);
    const bool uses_gathered = run.is_first && segment.runs == Segment::Runs::kPerMicrobatch;
    prices_.add_works(run, begin, uses_gathered ? gathered_ : kNothingGathered, works);
    std::map<int, int> last;  // by stream
    std::map<int, int> last_outliving;
    for (size_t t = 0; t < segment.tasks.size(); ++t) {
      const Task& task = segment.tasks[t];
      Work& work = works.works[first + t];
      if (segment.is_background) work.is_shared = false;
      if (runs(task, run.is_last) && meetings_.is_shared(index_, task)) {
        work.meeting = meetings_.next(index_, task);
        work.holds = segment.is_background;
      }
      const auto w = static_cast<int>(first + t);
      if (is_free_gather(task)) {
        free_.push_back(w);
        gathered_.emplace(task.label.block, w);
        continue;
      }
      (is_outliving(segment, task) ? last_outliving : last)[work.stream] = w;
    }
    for (const auto& [stream, work] : last) ends_.back().joined.push_back(work);
    for (const auto& [stream, work] : last_outliving) ends_.back().outliving.push_back(work);
  }

  inline static const std::map<int, int> kNothingGathered;

  const Plan& plan_;
  size_t index_;
  SegmentPrices prices_;
  TaskMeetings& meetings_;
  const Software& software_;
  std::vector<int> free_;        // works that the update waits for
  std::map<int, int> gathered_;  // works by block
  std::vector<bool> meets_;      // by segment
  std::vector<Item> items_;      // by item
  std::vector<Ends> ends_;       // by item; empty where it is one work
  int foreground_ = -1;          // the last work before which the foreground has ended
};

}  // namespace

StepPrice price_step(std::span<const PricedRank> ranks, int num_microbatches,
                     const Machine& machine, const PriceOptions& options,
                     std::vector<PricedSpan>* spans, const Progress& progress) {
  TOK_CHECK(!ranks.empty(), "no rank to price");
  TaskMeetings meetings(ranks);
  std::vector<RankStep> steps;
  steps.reserve(ranks.size());
  std::vector<RankWorks> works;
  for (size_t r = 0; r < ranks.size(); ++r) {
    steps.emplace_back(ranks[r], r, num_microbatches, machine, options, meetings);
    works.push_back(std::move(steps.back().works));
    if (progress) progress("ranks laid out", std::ssize(works), std::ssize(ranks));
  }
  const std::vector<RankTimes> times =
      run_streams(works, meetings.sizes(), slowdown_of(machine.software), progress);
  StepPrice price;
  for (const RankTimes& t : times) price.seconds = std::max(price.seconds, t.last_s);
  price.seconds += machine.software.step_overhead_s;
  for (size_t r = 0; r < ranks.size(); ++r) {
    EnumArray<Category, double, kNumCategories> by_category = times[r].by_category;
    double hidden_s = times[r].hidden_comm_s;
    steps[r].add_whole_items(times[r].whole_items_s, by_category, hidden_s);
    by_category[Category::kHost] += machine.software.step_overhead_s;
    const double spent = std::accumulate(by_category.begin(), by_category.end(), 0.0);
    const double bubble_s = std::max(0.0, price.seconds - spent);
    by_category[Category::kBubble] = bubble_s;
    price.bubble_s.push_back(bubble_s);
    price.bubble_fraction += bubble_s / price.seconds / static_cast<double>(ranks.size());
    price.events += steps[r].num_events() + static_cast<int64_t>(works[r].works.size());
    if (r == 0 || bubble_s < price.bubble_s[price.slowest]) {
      price.slowest = static_cast<int>(r);
      price.slowest_rank = ranks[r].rank;
      price.by_category = by_category;
      price.hidden_comm_s = hidden_s;
    }
    if (spans != nullptr) steps[r].add_spans(times[r], *spans);
  }
  return price;
}

}  // namespace tokamak::price
