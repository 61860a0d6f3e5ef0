#include "tokamak/price/report/report_of.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include <fmt/format.h>

#include "tokamak/price/machine/device_spread.h"
#include "tokamak/price/report/pictures.h"
#include "tokamak/run/flops.h"
#include "tokamak/run/profile_trace.h"
#include "tokamak/run/run_of_config.h"
#include "tokamak/run/scratch_use.h"

namespace tokamak {
namespace {

std::string schedule_text(const PriceRequest& request, const PricedRun& run) {
  const Config& config = request.config;
  const std::string name =
      request.degrees.pp > 1 ? config.parallelism.pipeline_parallel_schedule + ", " : std::string();
  return fmt::format("{}{} microbatch{} of {} x {}, recompute {}", name, run.batch.num_microbatches,
                     run.batch.num_microbatches == 1 ? "" : "es", run.batch.microbatch,
                     config.training.seq_len, recompute_text(config.activation_checkpoint));
}

// Returns the spans of one priced rank.
std::span<const price::PricedSpan> spans_of(const PricedRun& run, int rank) {
  const auto begin =
      std::partition_point(run.spans.begin(), run.spans.end(),
                           [&](const price::PricedSpan& s) { return s.rank < rank; });
  const auto end = std::partition_point(begin, run.spans.end(),
                                        [&](const price::PricedSpan& s) { return s.rank == rank; });
  return {begin, end};
}

// The memory in use by a plan over its priced step.
class MemoryInTime {
 public:
  explicit MemoryInTime(const Plan& plan) : plan_(plan) {
    for (size_t s = 0; s < plan.segments.size(); ++s) {
      const std::vector<int64_t> use = scratch_in_use(plan.segments[s]);
      for (size_t t = 0; t < use.size(); ++t) {
        const Task& task = plan.segments[s].tasks[t];
        const auto& joined = plan.segments[s].joined;
        const bool is_left = task.label.phase == Phase::kWeightGradient;
        const int alone = joined && is_left ? joined->weight
                          : joined          ? joined->forward
                                            : static_cast<int>(s);
        segment_of_[&task] = alone;
        scratch_[&plan.segments[s].tasks[t]] = static_cast<double>(use[t]);
      }
    }
  }

  std::vector<price::MemoryPoint> points(std::span<const price::PricedSpan> spans) {
    for (const price::PricedSpan& s : spans) hold(s);
    price::MemoryPoint always;
    always.bytes[ArenaKind::kState] = planned(ArenaKind::kState);
    always.bytes[ArenaKind::kCarried] = planned(ArenaKind::kCarried);
    std::vector<price::MemoryPoint> points{always};
    for (const price::PricedSpan& s : spans) {
      if (s.stream != 0) continue;
      price::MemoryPoint& p = points.emplace_back(always);
      p.time_s = s.begin_s;
      p.bytes[ArenaKind::kSlot] = slots_at(s.begin_s);
      p.bytes[ArenaKind::kScratch] = scratch_.at(s.task);
    }
    return points;
  }

 private:
  double planned(ArenaKind arena) const { return static_cast<double>(plan_.arena_bytes[arena]); }

  // A microbatch holds its slot from the first segment's begin to the last one's end.
  void hold(const price::PricedSpan& s) {
    const int segment = segment_of_.at(s.task);
    for (size_t c = 0; c < plan_.slots.size(); ++c) {
      const SlotClass& slots = plan_.slots[c];
      if (slots.alias_of >= 0) continue;
      const std::pair key(c, s.microbatch);
      if (segment == slots.first_segment && begins_.try_emplace(key, s.begin_s).second)
        changes_[s.begin_s] += static_cast<double>(slots.bytes);
      if (segment != slots.last_segment) continue;
      const auto [end, is_new] = ends_.try_emplace(key, s.end_s);
      if (!is_new) changes_[end->second] += static_cast<double>(slots.bytes);
      end->second = std::max(end->second, s.end_s);
      changes_[end->second] -= static_cast<double>(slots.bytes);
    }
  }

  // REQUIRES: called in order of time.
  double slots_at(double time_s) {
    for (auto next = changes_.begin(); next != changes_.end() && next->first <= time_s;
         next = changes_.erase(next))
      held_ += next->second;
    return held_;
  }

  const Plan& plan_;
  std::unordered_map<const Task*, int> segment_of_;
  std::unordered_map<const Task*, double> scratch_;
  std::map<std::pair<size_t, int>, double> begins_, ends_;  // by slot class and microbatch
  std::map<double, double> changes_;                        // bytes by time
  double held_ = 0.0;
};

// Keeps the greatest point of each stretch, so that a picture stays small.
std::vector<price::MemoryPoint> thinned(const std::vector<price::MemoryPoint>& points) {
  constexpr size_t kMost = 2000;
  const size_t stretch = points.size() / kMost + 1;
  const auto sum = [](const price::MemoryPoint& p) {
    return p.bytes[0] + p.bytes[1] + p.bytes[2] + p.bytes[3];
  };
  std::vector<price::MemoryPoint> kept;
  for (size_t i = 0; i < points.size(); i += stretch) {
    const auto begin = points.begin() + static_cast<std::ptrdiff_t>(i);
    const auto end =
        points.begin() + static_cast<std::ptrdiff_t>(std::min(i + stretch, points.size()));
    kept.push_back(*std::max_element(
        begin, end, [&](const auto& a, const auto& b) { return sum(a) < sum(b); }));
    kept.back().time_s = begin->time_s;
  }
  return kept;
}

}  // namespace

price::Report report_of(const PriceRequest& request, const PricedRun& run, double tokens) {
  const PlannedRanks::Rank& fullest = run.planned.fullest();
  const int64_t seq_len = request.config.training.seq_len;
  const FlopsShape shape = flops_shape(run.model, seq_len);
  const RunShape planned = shape_of(request.config, run.model, {.degrees = request.degrees});
  const price::Precision products = matmul_precision(request.config, request.precision());
  price::Report report{
      .model = fmt::format("{} {}", run.model.name, run.model.flavor),
      .machine = request.machine.name,
      .taken = price::taken_text(request.machine),
      .unverified = price::unverified_text(request.machine),
      .num_devices = request.degrees.world(),
      .mesh = mesh_text(request.degrees),
      .schedule = schedule_text(request, run),
      .precision = products,
      .device_graphs = run.options.device_graphs,
      .slowest_lag = price::slowest_lag(request.machine.device, request.degrees.world()),
      .step = run.step,
      .tokens_per_step = run.tokens_per_step,
      .flops = {{"torchtitan", flops_per_token(shape)},
                {"Megatron-LM", megatron_flops_per_token(run.model, seq_len)},
                {"NeMo 24.09", nemo_flops_per_token(run.model, seq_len)},
                {"causal", causal_flops_per_token(shape)}},
      .peak_flops = request.machine.device.peak_flops[products],
      .memory_rank = fullest.rank,
      .memory = fullest.plan->memory,
      .memory_limit_bytes = run.memory_limit_bytes,
      .tokens = tokens};
  int64_t listed = 0;
  for (const MemoryRow& row : report.memory) listed += row.bytes;
  if (fullest.peak_bytes() > listed) {
    report.memory.push_back(
        {.owner = "validation beyond training", .bytes = fullest.peak_bytes() - listed});
  }
  if (!report.fits()) report.memory_advice = memory_advice(run, request.config, request.degrees);
  // A run that saves nothing is priced as if it saved in the background.
  const CheckpointConfig& saves = request.config.checkpoint;
  // Saves masters and two moments; compute copies are made from masters again.
  const Degrees& degrees = request.degrees;
  report.reliability = price::reliability_of(
      {.bytes = 3.0 * static_cast<double>(size_of(planned.training.master)) *
                static_cast<double>(shape.parameters),
       .num_ranks = static_cast<int>(degrees.world()),
       .num_replicas = static_cast<int>(degrees.dp_replicate),
       .block_ranks = static_cast<int>(degrees.dp_shard * degrees.cp * degrees.tp),
       .in_background = !saves.enable || saves.async_mode != "disabled",
       .free_bytes = report.memory_limit_bytes - report.memory_bytes()},
      run.step, request.machine);
  return report;
}

std::string trace_of(const PricedRun& run) {
  const std::vector<PlannedRanks::Rank>& planned = run.planned.ranks();
  std::vector<std::vector<TaskSpan>> spans(planned.size());
  std::vector<RankSpans> ranks;
  for (size_t r = 0; r < planned.size(); ++r) {
    for (const price::PricedSpan& s : spans_of(run, static_cast<int>(r)))
      spans[r].push_back({.task = s.task, .begin_s = s.begin_s, .end_s = s.end_s});
    ranks.push_back({.spans = spans[r], .plan = planned[r].plan, .rank = planned[r].rank});
  }
  return chrome_trace(ranks);
}

std::string page_of(const PricedRun& run, const price::Report& report) {
  const std::vector<PlannedRanks::Rank>& planned = run.planned.ranks();
  std::vector<int> ranks;
  ranks.reserve(planned.size());
  for (const PlannedRanks::Rank& rank : planned) ranks.push_back(rank.rank);
  // The report's fullest rank may be one that is planned only for its memory, without times.
  const auto fullest = std::max_element(
      planned.begin(), planned.end(),
      [](const auto& a, const auto& b) { return a.peak_bytes() < b.peak_bytes(); });
  MemoryInTime memory(*fullest->plan);
  return step_page(
      report, timeline_rows(run.spans, ranks, report.step.seconds),
      {.rank = fullest->rank,
       .planned_bytes = static_cast<double>(fullest->peak_bytes()),
       .points =
           thinned(memory.points(spans_of(run, static_cast<int>(fullest - planned.begin()))))});
}

}  // namespace tokamak
