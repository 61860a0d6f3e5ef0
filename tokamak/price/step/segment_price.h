// One run of a segment by one rank, priced by itself.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "tokamak/core/enum_array.h"
#include "tokamak/price/step/stream_loop.h"
#include "tokamak/price/task/low_precision.h"

namespace tokamak::price {

struct SegmentPrice {
  double seconds = 0.0;
  EnumArray<Category, double, kNumCategories> by_category{};  ///< sums to `seconds`
  double hidden_comm_s = 0.0;
  double held_factor = 1.0;     ///< on its seconds during a pipeline's message
  double host_s = 0.0;          ///< delay by the host; part of `seconds`
  std::vector<double> begin_s;  ///< by task
  std::vector<double> end_s;
};

/// Which run of a segment: runs differ in what accumulates and in what the last one adds.
struct SegmentRun {
  int segment = 0;
  bool is_first = true;
  bool is_last = true;

  auto operator<=>(const SegmentRun&) const = default;
};

/// Prices the segments of one plan, each run once.
class SegmentPrices {
 public:
  /// All must outlive it; `groups` are those of the plan, or of another rank that shares the plan.
  SegmentPrices(const Plan& plan, const GroupTable& groups, const Machine& machine,
                const PriceOptions& options);

  SegmentPrices(const Plan& plan, const Machine& machine, const PriceOptions& options)
      : SegmentPrices(plan, plan.groups, machine, options) {}

  /// If the power limit holds for the whole step, sets the clocks of a step that runs each segment
  /// so often, and tasks of blocks `block_weight` (of the options) times as often. REQUIRES:
  /// nothing is priced yet.
  void settle_clock(std::span<const int64_t> runs_of_segment);

  /// Counts `runs` runs of a segment, at the highest clocks. REQUIRES: no clock is set yet.
  void add_power(int segment, double runs, PowerUse& use);

  const SegmentPrice& price(const SegmentRun& run);

  /// Adds one Work for each of the segment's tasks, which wait for each other as the plan says. The
  /// first on each stream other than 0 also waits for `begin`, and the first of a block for that
  /// block's entry in `gathered`. Streams have stream_number(). Tasks that do not run take no time.
  void add_works(const SegmentRun& run, std::span<const int> begin,
                 const std::map<int, int>& gathered, RankWorks& works);

  /// Returns the number that stands for a stream of the plan.
  int stream_number(int stream) const { return streams_.at(stream); }

  int64_t num_events() const { return num_events_; }

 private:
  bool is_by_copy_engine(const Task& task) const;
  double task_seconds(const SegmentRun& run, size_t task);
  const std::vector<Cost>& costs(size_t segment);
  const LowPrecisionFlow& flow(size_t segment);
  double held_factor(const SegmentRun& run, double seconds) const;
  double host_seconds(const SegmentRun& run, const RankTimes& times) const;

  const Plan& plan_;
  const Machine& machine_;
  const PriceOptions& options_;
  TaskTimes times_;
  std::map<int, int> streams_;
  std::vector<std::vector<Cost>> costs_;                     // by segment, task
  std::vector<LowPrecisionFlow> flows_;                      // by segment
  std::vector<std::array<std::vector<double>, 2>> seconds_;  // by segment, is_first, task
  std::vector<std::array<std::vector<double>, 2>> held_;     // factors during a message
  std::map<SegmentRun, SegmentPrice> prices_;
  int64_t num_events_ = 0;
};

/// Whether a task runs in this microbatch.
bool runs(const Task& task, bool is_last);

}  // namespace tokamak::price
