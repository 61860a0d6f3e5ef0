// What a schedule makes of a pipeline's costs: time and slots.
#include <algorithm>
#include <cmath>

#include "tokamak/core/error.h"
#include "tokamak/price/closed_form.h"

namespace tokamak::price {
namespace {

using Kind = PipelineItemKind;

// Lengths of reductions, in those of the work that they follow, for which the longest way is found:
// the longer they are the more of them are on it.
constexpr double kReductions[] = {0.0, 0.1, 0.3, 1.0, 3.0};

// Seconds by PipelinePass::duration_index(). The reductions of a stage take `reductions` times as
// long as the work that they follow.
std::vector<double> durations_of(const StageCosts& costs, const PipelineShape& shape,
                                 std::span<const double> hops_s, double reductions) {
  const int num_stages = static_cast<int>(shape.stages.size());
  std::vector<double> seconds(static_cast<size_t>(num_stages) * 12);
  for (int s = 0; s < num_stages; ++s) {
    const StageModules& stage = shape.stages[static_cast<size_t>(s)];
    for (const bool is_first : {false, true}) {
      for (const bool is_last : {false, true}) {
        const auto at = [&](StageWork work) -> double& {
          return seconds[static_cast<size_t>(
              PipelinePass::duration_index(s, work, is_first, is_last))];
        };
        double& backward = at(StageWork::kBackward);
        double& weight = at(StageWork::kWeight);
        at(StageWork::kForward) = costs.forward_s(stage);
        backward = is_first ? costs.first_backward_s(stage) : costs.backward_s(stage);
        weight = is_first ? costs.first_weight_s(stage) : costs.weight_s(stage);
        if (is_last) (shape.is_split ? weight : backward) *= 1.0 + reductions;
      }
    }
  }
  seconds.insert(seconds.end(), hops_s.begin(), hops_s.end());
  return seconds;
}

// By PipelinePass::duration_index(): whether the work is a stage's last that makes gradients.
std::vector<bool> reducing_works(const PipelineShape& shape) {
  const StageWork reducing = shape.is_split ? StageWork::kWeight : StageWork::kBackward;
  std::vector<bool> reduces(shape.stages.size() * 12);
  for (int s = 0; s < std::ssize(shape.stages); ++s) {
    for (const bool is_first : {false, true})
      reduces[static_cast<size_t>(PipelinePass::duration_index(s, reducing, is_first, true))] =
          true;
  }
  return reduces;
}

struct PassEnd {
  double seconds = 0.0;
  std::vector<double> begin;  // by work
  std::vector<double> end;
  std::vector<int32_t> path;   // durations of the works that it consists of
  std::vector<double> last_s;  // by stage: the end of the work that reduces
};

// `slowed_s`: what messages add to each work; empty where they add nothing.
PassEnd run_pass(const PipelinePass& pass, const PipelineShape& shape,
                 const std::vector<double>& seconds, const std::vector<double>& slowed_s) {
  const size_t n = pass.duration.size();
  std::vector<int32_t> critical(n, -1);
  const std::vector<bool> reduces = reducing_works(shape);
  PassEnd result{.begin = std::vector<double>(n),
                 .end = std::vector<double>(n),
                 .last_s = std::vector<double>(shape.stages.size())};
  std::vector<double>& end = result.end;
  size_t last = 0;
  for (size_t w = 0; w < n; ++w) {
    double begin = 0.0;
    for (int32_t i = pass.first_need[w]; i < pass.first_need[w + 1]; ++i) {
      const int32_t need = pass.needs[static_cast<size_t>(i)];
      if (end[static_cast<size_t>(need)] > begin) {
        begin = end[static_cast<size_t>(need)];
        critical[w] = need;
      }
    }
    const auto duration = static_cast<size_t>(pass.duration[w]);
    result.begin[w] = begin;
    end[w] = begin + seconds[duration] + (slowed_s.empty() ? 0.0 : slowed_s[w]);
    if (end[w] > end[last]) last = w;
    if (duration < reduces.size() && reduces[duration]) result.last_s[duration / 12] = end[w];
  }
  if (n > 0) result.seconds = end[last];
  for (int32_t w = n == 0 ? -1 : static_cast<int32_t>(last); w >= 0;
       w = critical[static_cast<size_t>(w)])
    result.path.push_back(pass.duration[static_cast<size_t>(w)]);
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
  const int num_works = pass.num_stages * 12;
  const int p = pass.num_ranks;
  std::vector<std::vector<Interval>> held(static_cast<size_t>(p));
  for (size_t w = 0; w < pass.duration.size(); ++w) {
    const int message = pass.duration[w] - num_works;
    if (message < 0) continue;
    const int from = message / 2;
    const int to = (from + (message % 2 == 0 ? 1 : p - 1)) % p;
    for (const int rank : {from, to}) {
      double arrival = 0.0;
      for (int32_t i = pass.first_need[w]; i < pass.first_need[w + 1]; ++i) {
        const auto need = static_cast<size_t>(pass.needs[static_cast<size_t>(i)]);
        const int duration = pass.duration[need];
        const bool is_own = duration >= num_works ||
                            shape.rank_of_stage[static_cast<size_t>(duration / 12)] == rank;
        if (is_own) arrival = std::max(arrival, times.end[need]);
      }
      held[static_cast<size_t>(rank)].push_back({arrival, times.end[w]});
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

// What each work takes longer for the messages beside it. Those depend on the works in turn: some
// rounds, each half way, settle it.
std::vector<double> slowed_by_messages(const PipelinePass& pass, const PipelineShape& shape,
                                       const std::vector<double>& seconds, double slowdown) {
  constexpr int kRounds = 8;
  constexpr double kSettled = 5e-4;  // of the pass
  if (slowdown == 1.0) return {};
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
      if (duration >= pass.num_stages * 12) continue;
      const auto rank =
          static_cast<size_t>(shape.rank_of_stage[static_cast<size_t>(duration / 12)]);
      const double took_s = times.end[w] - times.begin[w];
      if (took_s <= 0.0) continue;
      const double share = overlap_s(held[rank], from[rank], times.begin[w], times.end[w]) / took_s;
      const double alone_s = seconds[static_cast<size_t>(duration)];
      const double next_s = alone_s / (1.0 - share + share / slowdown) - alone_s;
      slowed_s[w] = round == 0 ? next_s : 0.5 * (slowed_s[w] + next_s);
    }
  }
  return slowed_s;
}

// Stages whose last reductions are on the way.
std::vector<int> reductions_on(const std::vector<int32_t>& path, const PipelineShape& shape) {
  const std::vector<bool> reduces = reducing_works(shape);
  std::vector<int> stages;
  for (const int32_t d : path) {
    if (d < std::ssize(reduces) && reduces[static_cast<size_t>(d)]) stages.push_back(d / 12);
  }
  return stages;
}

double slot_bytes_of(const StageCosts& costs, const PipelineShape& shape, int rank) {
  const auto r = static_cast<size_t>(rank);
  std::vector<SlotNeed> needs;
  const auto add = [&](int stage, bool forward) {
    const StageModules& modules = shape.stages[static_cast<size_t>(stage)];
    for (const int h : costs.held_order[modules.has_embedding ? 0 : modules.has_head ? 2 : 1]) {
      const auto& cost = costs.held[static_cast<size_t>(h)];
      const HeldKind& kind = cost.first;
      const bool is_forward = kind.from == Kind::kForward || kind.from == Kind::kRecvForward;
      if (is_forward != forward) continue;
      const double size = cost.second(modules);
      const auto values =
          std::find_if(shape.held[r].begin(), shape.held[r].end(),
                       [&](const HeldValues& v) { return v.stage == stage && v.kind == kind; });
      if (size > 0.0 && values != shape.held[r].end())
        needs.push_back({.bytes = static_cast<int64_t>(size + 0.5), .held = values->held});
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

PipelineUse pipeline_use(const StageCosts& costs, const PipelineShape& shape,
                         std::span<const double> hops_s) {
  TOK_CHECK(std::ssize(hops_s) == 2 * shape.num_ranks, "{} hops", hops_s.size());
  TOK_CHECK(!shape.held.empty(), "{} without its schedule", shape.schedule);
  PipelineUse use;
  const int more = shape.num_microbatches - shape.pass.num_microbatches;
  double longer_s = 0.0;
  const std::vector<double> alone_s = durations_of(costs, shape, hops_s, 0.0);
  const auto slowed_s = slowed_by_messages(shape.pass, shape, alone_s, costs.message_slowdown);
  for (const double reductions : kReductions) {
    const std::vector<double> seconds = durations_of(costs, shape, hops_s, reductions);
    const PassEnd end = run_pass(shape.pass, shape, seconds, slowed_s);
    if (more > 0 && reductions == 0.0) {
      const PassEnd shorter =
          run_pass(shape.shorter, shape, seconds,
                   slowed_by_messages(shape.shorter, shape, seconds, costs.message_slowdown));
      longer_s = (end.seconds - shorter.seconds) / shape.num_ranks * more;
    }
    if (reductions == 0.0) {
      for (const double last_s : end.last_s) use.last_s.push_back(last_s + longer_s);
    }
    PipelineUse::Path path{.seconds = end.seconds + longer_s,
                           .reductions = reductions_on(end.path, shape)};
    for (const int s : path.reductions) {
      const StageModules& stage = shape.stages[static_cast<size_t>(s)];
      const bool is_only = shape.num_microbatches == 1;
      const StageSum& work = shape.is_split ? (is_only ? costs.first_weight_s : costs.weight_s)
                                            : (is_only ? costs.first_backward_s : costs.backward_s);
      path.seconds -= reductions * work(stage);
    }
    use.paths.push_back(std::move(path));
  }
  for (int r = 0; r < shape.num_ranks; ++r)
    use.slot_bytes.push_back(slot_bytes_of(costs, shape, r));
  return use;
}

double least_seconds(const StageCosts& costs, const PipelineShape& shape, double hop_s) {
  std::vector<double> before(shape.stages.size() + 1, 0.0);  // of the first microbatch
  std::vector<double> after(shape.stages.size() + 1, 0.0);   // of the last
  for (size_t s = 0; s < shape.stages.size(); ++s) {
    const bool hops =
        s + 1 < shape.stages.size() && shape.rank_of_stage[s] != shape.rank_of_stage[s + 1];
    const double hop = hops ? hop_s : 0.0;
    before[s + 1] = before[s] + costs.forward_s(shape.stages[s]) + hop;
    after[s + 1] = after[s] + costs.backward_s(shape.stages[s]) + hop;
  }
  double least = 0.0;
  for (const std::vector<int>& stages : shape.stages_of) {
    double work = 0.0;
    double first = 0.0;
    for (const int s : stages) {
      const StageModules& stage = shape.stages[static_cast<size_t>(s)];
      const double backward = costs.backward_s(stage) + costs.weight_s(stage);
      work += costs.forward_s(stage) + backward;
      first += costs.first_backward_s(stage) + costs.first_weight_s(stage) - backward;
    }
    const auto begin = static_cast<size_t>(stages.front());
    // Weight gradients may be all that is left when the last microbatch comes by.
    const double back = shape.is_split ? 0.0 : after[begin];
    least = std::max(least, before[begin] + shape.num_microbatches * work + first + back);
  }
  return least;
}

}  // namespace tokamak::price
