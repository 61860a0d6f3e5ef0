#include "tokamak/price/step/segment_price.h"

#include <algorithm>
#include <set>

namespace tokamak::price {

bool runs(const Task& task, bool is_last) {
  return is_last || task.when != When::kLastMicrobatch;
}

SegmentPrices::SegmentPrices(const Plan& plan, const GroupTable& groups, const Machine& machine,
                             const PriceOptions& options)
    : plan_(plan),
      machine_(machine),
      options_(options),
      times_(groups, machine, options),
      streams_{{0, 0}},
      costs_(plan.segments.size()),
      flows_(plan.segments.size()),
      seconds_(plan.segments.size()),
      held_(plan.segments.size()) {
  for (const Segment& segment : plan.segments) {
    for (const Task& task : segment.tasks)
      streams_.emplace(task.stream, static_cast<int>(streams_.size()));
  }
}

const std::vector<Cost>& SegmentPrices::costs(size_t segment) {
  std::vector<Cost>& costs = costs_[segment];
  if (costs.empty()) {
    for (const Task& task : plan_.segments[segment].tasks) costs.push_back(cost_of(task));
  }
  return costs;
}

const LowPrecisionFlow& SegmentPrices::flow(size_t segment) {
  LowPrecisionFlow& flow = flows_[segment];
  if (flow.casts.empty()) {
    flow = low_precision_flow(plan_.segments[segment].tasks, costs(segment),
                              machine_.software.gathers_low == 1);
  }
  return flow;
}

void SegmentPrices::settle_clock(std::span<const int64_t> runs_of_segment) {
  if (machine_.device.power.memory <= 0.0) return;
  PowerUse use;
  for (size_t s = 0; s < plan_.segments.size(); ++s)
    add_power(static_cast<int>(s), static_cast<double>(runs_of_segment[s]), use);
  times_.set_clock(step_clock(use, machine_.device));
}

void SegmentPrices::add_power(int segment, double runs, PowerUse& use) {
  const auto s = static_cast<size_t>(segment);
  const std::vector<Task>& tasks = plan_.segments[s].tasks;
  const LowPrecisionFlow& flow = this->flow(s);
  for (size_t t = 0; t < tasks.size(); ++t) {
    const double weight = tasks[t].label.block >= 0 ? options_.block_weight : 1.0;
    // Weights are cast only in the first microbatch.
    const TaskRun how{.casts = flow.casts[t] != 0, .is_low = flow.is_low[t] != 0};
    times_.add_power(tasks[t], costs(s)[t], how, runs * weight, use);
  }
}

bool SegmentPrices::is_by_copy_engine(const Task& task) const {
  return plan_.transport_of(task) == Transport::kCopyEngines;
}

double SegmentPrices::task_seconds(const SegmentRun& run, size_t t) {
  const auto s = static_cast<size_t>(run.segment);
  return seconds_[s][run.is_first ? 1 : 0][t];
}

void SegmentPrices::add_works(const SegmentRun& run, std::span<const int> begin,
                              const std::map<int, int>& gathered, RankWorks& works) {
  const auto s = static_cast<size_t>(run.segment);
  const std::vector<Task>& tasks = plan_.segments[s].tasks;
  const std::vector<Cost>& costs = this->costs(s);
  std::vector<double>& seconds = seconds_[s][run.is_first ? 1 : 0];
  std::vector<double>& held = held_[s][run.is_first ? 1 : 0];
  const int message_sms = machine_.software.message_sms;
  if (seconds.empty()) {
    const LowPrecisionFlow& flow = this->flow(s);
    for (size_t t = 0; t < tasks.size(); ++t) {
      TaskRun how{.is_first = run.is_first,
                  .casts = flow.casts[t] != 0,
                  .casts_weights = flow.casts_weights[t] != 0,
                  .is_low = flow.is_low[t] != 0};
      seconds.push_back(times_.seconds(tasks[t], costs[t], how));
      how.held_sms = message_sms;
      held.push_back(1.0);
      if (tasks[t].rules->is_communication) continue;
      held.back() = machine_.software.message_slowdown;
      if (message_sms > 0) {
        held.back() =
            std::max(held.back(), times_.seconds(tasks[t], costs[t], how) / seconds.back());
      }
    }
  }
  const auto first = static_cast<int>(works.works.size());
  std::vector<bool> has_begun(streams_.size(), false);
  has_begun[0] = true;
  std::set<int> blocks;
  std::vector<int> after;
  for (size_t t = 0; t < tasks.size(); ++t) {
    const Task& task = tasks[t];
    const int stream = stream_number(task.stream);
    after.clear();
    if (!has_begun[stream]) after.assign(begin.begin(), begin.end());
    has_begun[stream] = true;
    const auto weights = gathered.find(task.label.block);
    if (weights != gathered.end() && blocks.insert(task.label.block).second)
      after.push_back(weights->second);
    Work work{.category = category_of(task, costs[t]), .stream = stream, .link = times_.link(task)};
    if (runs(task, run.is_last)) {
      work.seconds = task_seconds(run, t);
      work.held_factor = held[t];
      work.is_shared = true;
      work.is_by_copy_engine = is_by_copy_engine(task);
      for (const int w : task.waits) after.push_back(first + w);
    }
    works.add(work, after);
  }
}

// Returns the factor on a run that takes `seconds` without messages, which slow only its kernels.
double SegmentPrices::held_factor(const SegmentRun& run, double seconds) const {
  const auto s = static_cast<size_t>(run.segment);
  const std::vector<Task>& tasks = plan_.segments[s].tasks;
  const size_t which = run.is_first ? 1 : 0;
  double longer_s = 0.0;
  for (size_t t = 0; t < tasks.size(); ++t) {
    if (runs(tasks[t], run.is_last)) longer_s += seconds_[s][which][t] * (held_[s][which][t] - 1.0);
  }
  return seconds > 0.0 ? 1.0 + longer_s / seconds : 1.0;
}

// Returns the time of launches beyond that of kernels: of the whole segment if the host runs ahead,
// else of each block.
double SegmentPrices::host_seconds(const SegmentRun& run, const RankTimes& times) const {
  const std::vector<Task>& tasks = plan_.segments[run.segment].tasks;
  const Software& software = machine_.software;
  std::set<std::pair<int, Phase>> launched;
  double beyond_s = 0.0;
  double launching_s = 0.0;
  double begin_s = 0.0;
  double end_s = 0.0;
  const auto add = [&] {
    beyond_s += std::max(0.0, launching_s - (end_s - begin_s));
    launching_s = 0.0;
    begin_s = end_s;
  };
  for (size_t t = 0; t < tasks.size(); ++t) {
    const bool is_other = t > 0 && (tasks[t].label.block != tasks[t - 1].label.block ||
                                    tasks[t].label.phase != tasks[t - 1].label.phase);
    if (is_other && software.host_ahead == 0) add();
    if (!runs(tasks[t], run.is_last)) continue;
    const Label& label = tasks[t].label;
    const bool is_pass = label.phase == Phase::kForward || label.phase == Phase::kBackward;
    if (software.host_block_s <= 0.0 || label.block < 0 || !is_pass) {
      launching_s += software.host_launch_s;
    } else if (launched.emplace(label.block, label.phase).second) {
      launching_s += (label.phase == Phase::kBackward ? 2.0 : 1.0) * software.host_block_s;
    }
    end_s = std::max(end_s, times.end_s[t]);
  }
  add();
  return beyond_s;
}

const SegmentPrice& SegmentPrices::price(const SegmentRun& run) {
  const auto [at, is_new] = prices_.try_emplace(run);
  SegmentPrice& price = at->second;
  if (!is_new) return price;
  RankWorks works;
  works.num_streams = static_cast<int>(streams_.size());
  add_works(run, {}, {}, works);
  num_events_ += static_cast<int64_t>(works.works.size());
  RankTimes times = run_streams({&works, 1}, {}, slowdown_of(machine_.software))[0];
  price.by_category = times.by_category;
  price.hidden_comm_s = times.hidden_comm_s;
  if (!options_.device_graphs) price.host_s = host_seconds(run, times);
  price.begin_s = std::move(times.begin_s);
  price.end_s = std::move(times.end_s);
  price.by_category[Category::kHost] = price.host_s;
  price.seconds = times.last_s + price.host_s;
  price.held_factor = held_factor(run, price.seconds);
  return price;
}

}  // namespace tokamak::price
