// What a schedule makes of a pipeline's costs: time and slots.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "tokamak/core/error.h"
#include "tokamak/price/step/closed_form.h"
#include "tokamak/price/step/stage_clock.h"

namespace tokamak::price {
namespace {

using Kind = PipelineItemKind;

// Lengths of reductions, in those of the work that they follow, for which the longest way is found:
// the longer they are the more of them are on it.
constexpr double kReductions[] = {0.0, 0.1, 0.3, 1.0, 3.0};

const StageSeconds& seconds_of(int stage, const PipelineShape& shape,
                               const std::vector<StageSeconds>& by_rank) {
  return by_rank[shape.rank_of_stage[stage]];
}

// A stage's last work that makes gradients.
const WorkSeconds& reducing_work(int stage, const PipelineShape& shape,
                                 const std::vector<StageSeconds>& by_rank) {
  const StageSeconds& c = seconds_of(stage, shape, by_rank);
  if (shape.num_microbatches == 1) return shape.is_split ? c.first_weight : c.first_backward;
  return shape.is_split ? c.weight : c.backward;
}

// Seconds by PipelinePass::duration_index(), of messages too. The reductions of a stage take
// `reductions` times as long as the work that they follow.
std::vector<double> durations_of(StageSum WorkSeconds::*part, const PipelineShape& shape,
                                 const std::vector<StageSeconds>& by_rank,
                                 const PipelineRanks& ranks, double reductions) {
  const int num_stages = static_cast<int>(shape.stages.size());
  std::vector<double> seconds(static_cast<size_t>(num_stages) * PipelinePass::kDurationsOfStage);
  for (int s = 0; s < num_stages; ++s) {
    const StageModules& stage = shape.stages[s];
    const StageSeconds& c = seconds_of(s, shape, by_rank);
    for (const bool is_first : {false, true}) {
      for (const bool is_last : {false, true}) {
        const auto at = [&](StageWork work) -> double& {
          return seconds[PipelinePass::duration_index(s, work, is_first, is_last)];
        };
        double& backward = at(StageWork::kBackward);
        double& weight = at(StageWork::kWeight);
        at(StageWork::kForward) = (c.forward.*part)(stage);
        backward = ((is_first ? c.first_backward : c.backward).*part)(stage);
        weight = ((is_first ? c.first_weight : c.weight).*part)(stage);
        if (is_last) (shape.is_split ? weight : backward) *= 1.0 + reductions;
      }
    }
  }
  seconds.insert(seconds.end(), ranks.hops_s.begin(), ranks.hops_s.end());
  return seconds;
}

// By PipelinePass::duration_index(): whether the work is a stage's last that makes gradients.
std::vector<bool> reducing_works(const PipelineShape& shape) {
  const StageWork reducing = shape.is_split ? StageWork::kWeight : StageWork::kBackward;
  std::vector<bool> reduces(shape.stages.size() * PipelinePass::kDurationsOfStage);
  for (int s = 0; s < std::ssize(shape.stages); ++s) {
    for (const bool is_first : {false, true})
      reduces[PipelinePass::duration_index(s, reducing, is_first, true)] = true;
  }
  return reduces;
}

// REQUIRES: of a work, not of a message.
int rank_of(int duration, const PipelineShape& shape) {
  return shape.rank_of_stage[PipelinePass::stage_of(duration)];
}

struct PassEnd {
  double seconds = 0.0;
  std::vector<double> begin;  // by work
  std::vector<double> end;
  std::vector<int32_t> critical;  // by work: for whose end it waits, or -1
  std::vector<int32_t> path;      // durations of the works that it consists of
  std::vector<size_t> last_work;  // by stage: that reduces
};

// `slowed_s`: what messages add to each work; empty where they add nothing.
PassEnd run_pass(const PipelinePass& pass, const PipelineShape& shape,
                 const std::vector<double>& seconds, const std::vector<double>& slowed_s) {
  const size_t n = pass.duration.size();
  const std::vector<bool> reduces = reducing_works(shape);
  PassEnd result{.begin = std::vector<double>(n),
                 .end = std::vector<double>(n),
                 .critical = std::vector<int32_t>(n, -1),
                 .last_work = std::vector<size_t>(shape.stages.size())};
  std::vector<double>& end = result.end;
  size_t last = 0;
  for (size_t w = 0; w < n; ++w) {
    double begin = 0.0;
    for (int32_t i = pass.first_need[w]; i < pass.first_need[w + 1]; ++i) {
      const int32_t need = pass.needs[i];
      if (end[need] > begin) {
        begin = end[need];
        result.critical[w] = need;
      }
    }
    const int duration = pass.duration[w];
    const auto at = static_cast<size_t>(duration);
    result.begin[w] = begin;
    end[w] = begin + seconds[at] + (slowed_s.empty() ? 0.0 : slowed_s[w]);
    if (end[w] > end[last]) last = w;
    if (!pass.is_message(duration) && reduces[at])
      result.last_work[PipelinePass::stage_of(duration)] = w;
  }
  if (n > 0) result.seconds = end[last];
  for (int32_t w = n == 0 ? -1 : static_cast<int32_t>(last); w >= 0; w = result.critical[w])
    result.path.push_back(pass.duration[w]);
  return result;
}

struct Interval {
  double begin = 0.0;
  double end = 0.0;
};

// When each rank has a message under way or waits for its other end: from the end of its own works
// before it and of the message before it.
std::vector<std::vector<Interval>> held_by_rank(const PipelinePass& pass,
                                                const PipelineShape& shape, const PassEnd& times) {
  const int p = pass.num_ranks;
  std::vector<std::vector<Interval>> held(p);
  for (size_t w = 0; w < pass.duration.size(); ++w) {
    if (!pass.is_message(pass.duration[w])) continue;
    const int message = pass.duration[w] - pass.message_index(0, 1);
    const int from = message / 2;
    const int to = (from + (message % 2 == 0 ? 1 : p - 1)) % p;
    for (const int rank : {from, to}) {
      double arrival = 0.0;
      for (int32_t i = pass.first_need[w]; i < pass.first_need[w + 1]; ++i) {
        const auto need = static_cast<size_t>(pass.needs[i]);
        const int duration = pass.duration[need];
        const bool is_own = pass.is_message(duration) || rank_of(duration, shape) == rank;
        if (is_own) arrival = std::max(arrival, times.end[need]);
      }
      held[rank].push_back({arrival, times.end[w]});
    }
  }
  for (std::vector<Interval>& intervals : held) {
    const auto begins_before = [](const Interval& a, const Interval& b) {
      return a.begin < b.begin;
    };
    if (!std::is_sorted(intervals.begin(), intervals.end(), begins_before))
      std::sort(intervals.begin(), intervals.end(), begins_before);
    size_t num_merged = 0;
    for (const Interval& i : intervals) {
      if (num_merged > 0 && i.begin <= intervals[num_merged - 1].end) {
        Interval& last = intervals[num_merged - 1];
        last.end = std::max(last.end, i.end);
      } else {
        intervals[num_merged++] = i;
      }
    }
    intervals.resize(num_merged);
  }
  return held;
}

// How long a work has a message beside it. REQUIRES: intervals in order; `from`, the first of them
// that may matter, is kept from an earlier work of the rank.
double overlap_s(const std::vector<Interval>& intervals, size_t& from, double begin, double end) {
  while (from < intervals.size() && intervals[from].end <= begin) ++from;
  double seconds = 0.0;
  for (size_t i = from; i < intervals.size() && intervals[i].begin < end; ++i)
    seconds += std::min(intervals[i].end, end) - std::max(intervals[i].begin, begin);
  return seconds;
}

// What each work takes longer for the messages beside it, which takes `beside_s` with one all the
// time. Those depend on the works in turn: some rounds, each half way, settle it.
std::vector<double> slowed_by_messages(const PipelinePass& pass, const PipelineShape& shape,
                                       const std::vector<double>& seconds,
                                       const std::vector<double>& beside_s) {
  constexpr int kRounds = 8;
  constexpr double kSettled = 5e-4;  // of the pass
  if (beside_s == seconds) return {};
  std::vector<double> slowed_s(pass.duration.size(), 0.0);
  double before_s = 0.0;
  for (int round = 0; round < kRounds; ++round) {
    const PassEnd times = run_pass(pass, shape, seconds, slowed_s);
    if (std::abs(times.seconds - before_s) <= kSettled * times.seconds) break;
    before_s = times.seconds;
    const auto held = held_by_rank(pass, shape, times);
    std::vector<size_t> from(held.size(), 0);
    for (size_t w = 0; w < pass.duration.size(); ++w) {
      const int duration = pass.duration[w];
      if (pass.is_message(duration)) continue;
      const auto rank = static_cast<size_t>(rank_of(duration, shape));
      const double took_s = times.end[w] - times.begin[w];
      if (took_s <= 0.0) continue;
      const double share = overlap_s(held[rank], from[rank], times.begin[w], times.end[w]) / took_s;
      const double alone_s = seconds[duration];
      const double slowdown = beside_s[duration] / alone_s;
      const double next_s = alone_s / (1.0 - share + share / slowdown) - alone_s;
      slowed_s[w] = round == 0 ? next_s : 0.5 * (slowed_s[w] + next_s);
    }
  }
  return slowed_s;
}

// By stage; `seconds` are those of the pass.
std::vector<PipelineUse::First> firsts_of(const PassEnd& times, const PipelineShape& shape,
                                          const std::vector<StageSeconds>& by_rank,
                                          const std::vector<double>& seconds) {
  const PipelinePass& pass = shape.pass;
  std::vector<PipelineUse::First> firsts(shape.stages.size());
  double sent_s = 0.0;  // of the stage before
  for (size_t w = 0; w < pass.duration.size(); ++w) {
    const int duration = pass.duration[w];
    if (pass.is_message(duration)) continue;
    const int s = PipelinePass::stage_of(duration);
    const auto is_of = [&](bool is_last) {
      return duration == PipelinePass::duration_index(s, StageWork::kForward, true, is_last);
    };
    if (!is_of(false) && !is_of(true)) continue;
    const auto at = static_cast<size_t>(s);
    const WorkSeconds& forward = seconds_of(s, shape, by_rank).forward;
    const double communication_s = forward.communication(shape.stages[at]);
    firsts[at] = {.begin_s = times.begin[w],
                  .slack_s = times.begin[w] - sent_s,
                  .kernels_s = forward(shape.stages[at]) - communication_s,
                  .communication_s = communication_s};
    if (at + 1 == firsts.size()) break;
    const int from = shape.rank_of_stage[at];
    const int to = shape.rank_of_stage[at + 1];
    const double hop_s = from == to ? 0.0 : seconds[pass.message_index(from, to)];
    sent_s = times.end[w] + hop_s;
  }
  return firsts;
}

// By stage: the one whose last backward comes before its own on the longest way there, or -1.
std::vector<int> stages_before(const PassEnd& times, const PipelinePass& pass,
                               const PipelineShape& shape) {
  const std::vector<bool> reduces = reducing_works(shape);
  std::vector<int> before(pass.duration.size(), -1);
  for (size_t w = 0; w < before.size(); ++w) {
    if (times.critical[w] < 0) continue;
    const auto need = static_cast<size_t>(times.critical[w]);
    const int duration = pass.duration[need];
    const bool is_last = !pass.is_message(duration) && reduces[duration];
    before[w] = is_last ? PipelinePass::stage_of(duration) : before[need];
  }
  std::vector<int> by_stage;
  for (const size_t w : times.last_work) by_stage.push_back(before[w]);
  return by_stage;
}

// By stage. `slowed_s` as in run_pass(); the step ends `longer_s` after the pass.
std::vector<PipelineUse::Last> lasts_of(const PassEnd& times, const PipelineShape& shape,
                                        const std::vector<StageSeconds>& by_rank,
                                        const std::vector<double>& slowed_s, double longer_s) {
  const std::vector<int> before = stages_before(times, shape.pass, shape);
  std::vector<PipelineUse::Last> lasts;
  for (int s = 0; s < std::ssize(shape.stages); ++s) {
    const StageModules& stage = shape.stages[s];
    const WorkSeconds& work = reducing_work(s, shape, by_rank);
    const size_t at = times.last_work[s];
    const double alone_s = work.alone(stage);
    const double more_s = slowed_s.empty() ? 0.0 : slowed_s[at];
    PipelineUse::Last last{.end_s = times.end[at] + longer_s,
                           .after = before[s],
                           .kernels_s = alone_s - work.communication(stage) + more_s,
                           .communication_s = work.communication(stage)};
    if (more_s > 0.0) {
      const double beside_s = work.beside_message(stage);
      last.message_share = std::min(1.0, more_s / (alone_s + more_s) / (1.0 - alone_s / beside_s));
      last.message_slowdown = 1.0 + (beside_s - alone_s) / (alone_s - last.communication_s);
    }
    lasts.push_back(last);
  }
  return lasts;
}

std::vector<int> order_of(const std::vector<PipelineUse::Last>& lasts) {
  std::vector<int> stages(lasts.size());
  std::iota(stages.begin(), stages.end(), 0);
  const auto end_of = [&](int s) { return lasts[s].end_s; };
  std::stable_sort(stages.begin(), stages.end(),
                   [&](int a, int b) { return end_of(a) < end_of(b); });
  return stages;
}

// Stages whose last reductions are on the way.
std::vector<int> reductions_on(const std::vector<int32_t>& path, const PipelineShape& shape) {
  const std::vector<bool> reduces = reducing_works(shape);
  std::vector<int> stages;
  for (const int32_t d : path) {
    if (!shape.pass.is_message(d) && reduces[d]) stages.push_back(PipelinePass::stage_of(d));
  }
  std::sort(stages.begin(), stages.end());
  return stages;
}

double slot_bytes_of(const StageCosts& costs, const PipelineShape& shape, int rank) {
  const auto r = static_cast<size_t>(rank);
  std::vector<SlotNeed> needs;
  const auto add = [&](int stage, bool forward) {
    const StageModules& modules = shape.stages[stage];
    for (const int h : costs.held_order[modules.has_embedding ? 0 : modules.has_head ? 2 : 1]) {
      const auto& cost = costs.held[h];
      const HeldKind& kind = cost.first;
      const bool is_forward = kind.from == Kind::kForward || kind.from == Kind::kRecvForward;
      if (is_forward != forward) continue;
      const double size = held_bytes(kind, cost.second, modules);
      const auto values =
          std::find_if(shape.held[r].begin(), shape.held[r].end(),
                       [&](const HeldValues& v) { return v.stage == stage && v.kind == kind; });
      if (size > 0.0 && values != shape.held[r].end())
        needs.push_back({.bytes = std::llround(size), .held = values->held});
    }
  };
  const std::vector<int>& stages = shape.stages_of[r];
  for (const int s : stages) add(s, true);
  for (auto s = stages.rbegin(); s != stages.rend(); ++s) add(*s, false);
  int64_t total = 0;
  for (const SlotPool& pool : share_slots(needs)) total += pool.bytes();
  return static_cast<double>(total);
}

}  // namespace

double least_seconds(const StageCosts& costs, const PipelineShape& shape,
                     const PipelineRanks& ranks, const Machine& machine) {
  const auto by_rank = seconds_by_rank(costs, shape, ranks, machine, 1.0);
  const auto alone_s = durations_of(&WorkSeconds::alone, shape, by_rank, ranks, 0.0);
  const double seconds = run_pass(shape.pass, shape, alone_s, {}).seconds;
  const int more = shape.num_microbatches - shape.pass.num_microbatches;
  if (more == 0) return seconds;
  const double shorter_s = run_pass(shape.shorter, shape, alone_s, {}).seconds;
  return seconds + (seconds - shorter_s) / shape.num_ranks * more;
}

PipelineUse pipeline_use(const StageCosts& costs, const PipelineShape& shape,
                         const PipelineRanks& ranks, const Machine& machine) {
  TOK_CHECK(std::ssize(ranks.hops_s) == 2 * shape.num_ranks &&
                std::ssize(ranks.places) == shape.num_ranks,
            "{} hops of {} ranks", ranks.hops_s.size(), ranks.places.size());
  TOK_CHECK(!shape.held.empty(), "{} without its schedule", shape.schedule);
  PipelineUse use;
  const int more = shape.num_microbatches - shape.pass.num_microbatches;
  double pass_s = 0.0;
  double longer_s = 0.0;
  const auto by_rank = seconds_by_rank(costs, shape, ranks, machine, 0.0);
  const auto alone_s = durations_of(&WorkSeconds::alone, shape, by_rank, ranks, 0.0);
  const auto beside_s = durations_of(&WorkSeconds::beside_message, shape, by_rank, ranks, 0.0);
  const auto slowed_s = slowed_by_messages(shape.pass, shape, alone_s, beside_s);
  for (const double reductions : kReductions) {
    const auto seconds = durations_of(&WorkSeconds::alone, shape, by_rank, ranks, reductions);
    const PassEnd end = run_pass(shape.pass, shape, seconds, slowed_s);
    if (more > 0 && reductions == 0.0) {
      const PassEnd shorter = run_pass(shape.shorter, shape, seconds,
                                       slowed_by_messages(shape.shorter, shape, seconds, beside_s));
      longer_s = (end.seconds - shorter.seconds) / shape.num_ranks * more;
    }
    if (reductions == 0.0) {
      pass_s = end.seconds;
      use.firsts = firsts_of(end, shape, by_rank, seconds);
      use.lasts = lasts_of(end, shape, by_rank, slowed_s, longer_s);
      use.order_of_lasts = order_of(use.lasts);
    }
    PipelineUse::Path path{.seconds = end.seconds + longer_s,
                           .reductions = reductions_on(end.path, shape)};
    for (const int s : path.reductions) {
      const StageModules& stage = shape.stages[s];
      path.seconds -= reductions * reducing_work(s, shape, by_rank)(stage);
    }
    const auto same = std::find_if(use.paths.begin(), use.paths.end(), [&](const auto& other) {
      return other.reductions == path.reductions;
    });
    if (same == use.paths.end()) {
      use.paths.push_back(std::move(path));
    } else {
      same->seconds = std::max(same->seconds, path.seconds);
    }
  }
  if (costs.slow_clock != costs.fast_clock) {
    const auto cooler = seconds_by_rank(costs, shape, ranks, machine, 1.0);
    const PassEnd end = run_pass(
        shape.pass, shape, durations_of(&WorkSeconds::alone, shape, cooler, ranks, 0.0), slowed_s);
    use.cooler_s = (pass_s + longer_s) * (1.0 - end.seconds / pass_s);
  }
  for (int r = 0; r < shape.num_ranks; ++r)
    use.slot_bytes.push_back(slot_bytes_of(costs, shape, r));
  return use;
}

}  // namespace tokamak::price
