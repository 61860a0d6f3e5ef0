#include "tokamak/pipeline/timeline.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tokamak/core/error.h"

namespace tokamak {
namespace {

class Simulation {
 public:
  Simulation(const PipelineSchedule& schedule, const PipelineDurations& durations)
      : schedule_(schedule), durations_(durations), next_(schedule.num_ranks, 0) {
    const size_t count = size_t{1} * schedule.num_stages() * schedule.num_microbatches;
    forward_end_.assign(count, kNotYet);
    input_end_.assign(count, kNotYet);
    timeline_.ranks.resize(schedule.num_ranks);
    timeline_.busy.assign(schedule.num_ranks, 0.0);
    free_.assign(schedule.num_ranks, 0.0);
  }

  Timeline run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (int rank = 0; rank < schedule_.num_ranks; ++rank) {
        while (step(rank)) moved = true;
      }
    }
    fail_if_stuck();
    for (const double end : free_) timeline_.makespan = std::max(timeline_.makespan, end);
    return std::move(timeline_);
  }

 private:
  static constexpr double kNotYet = -1.0;

  size_t at(int stage, int microbatch) const {
    return size_t{1} * stage * schedule_.num_microbatches + microbatch;
  }

  // The time at which an action's inputs are on its rank, or the input that it still waits for.
  struct Inputs {
    double ready = 0.0;
    std::optional<PipelineAction> missing;
  };

  void need(Inputs& inputs, const std::vector<double>& ends, const PipelineAction& input,
            int rank) const {
    const double end = ends[at(input.stage, input.microbatch)];
    if (end == kNotYet) {
      if (!inputs.missing) inputs.missing = input;
      return;
    }
    const bool travels = schedule_.rank_of_stage[input.stage] != rank;
    inputs.ready = std::max(inputs.ready, end + (travels ? durations_.transfer : 0.0));
  }

  Inputs inputs_of(const PipelineAction& a, int rank) const {
    Inputs inputs;
    PipelineAction input{.stage = a.stage, .microbatch = a.microbatch};
    switch (a.op) {
      case PipelineOp::kForward:
        input.stage -= 1;
        if (input.stage >= 0) need(inputs, forward_end_, input, rank);
        break;
      case PipelineOp::kBackward:
      case PipelineOp::kBackwardInput:
        need(inputs, forward_end_, input, rank);
        input.stage += 1;
        input.op = PipelineOp::kBackward;
        if (input.stage < schedule_.num_stages()) need(inputs, input_end_, input, rank);
        break;
      case PipelineOp::kBackwardWeight:
        input.op = PipelineOp::kBackwardInput;
        need(inputs, input_end_, input, rank);
        break;
    }
    return inputs;
  }

  double duration_of(const PipelineAction& a) const {
    const StageDurations d =
        durations_.stages.empty() ? StageDurations{} : durations_.stages[a.stage];
    switch (a.op) {
      case PipelineOp::kForward:
        return d.forward;
      case PipelineOp::kBackward:
        return d.backward_input + d.backward_weight;
      case PipelineOp::kBackwardInput:
        return d.backward_input;
      case PipelineOp::kBackwardWeight:
        return d.backward_weight;
    }
    return 0.0;
  }

  // Actions that begin together: one, or an overlapped pair.
  size_t group_size(int rank) const {
    const auto& actions = schedule_.actions[rank];
    const size_t next = next_[rank];
    return next + 1 < actions.size() && actions[next + 1].overlaps_previous ? 2 : 1;
  }

  bool step(int rank) {
    const auto& actions = schedule_.actions[rank];
    if (next_[rank] == actions.size()) return false;
    const size_t count = group_size(rank);
    double begin = free_[rank];
    double duration = 0.0;
    for (size_t i = 0; i < count; ++i) {
      const Inputs inputs = inputs_of(actions[next_[rank] + i], rank);
      if (inputs.missing) return false;
      begin = std::max(begin, inputs.ready);
      duration += duration_of(actions[next_[rank] + i]);
    }
    if (count == 2) duration *= durations_.pair_factor;
    for (size_t i = 0; i < count; ++i) finish(rank, actions[next_[rank] + i], begin, duration);
    timeline_.busy[rank] += duration;
    free_[rank] = begin + duration;
    next_[rank] += count;
    return true;
  }

  void finish(int rank, const PipelineAction& a, double begin, double duration) {
    const size_t index = at(a.stage, a.microbatch);
    const double end = begin + duration;
    if (a.op == PipelineOp::kForward) forward_end_[index] = end;
    if (a.op == PipelineOp::kBackward || a.op == PipelineOp::kBackwardInput)
      input_end_[index] = end;
    timeline_.ranks[rank].push_back({.action = a, .begin = begin, .end = end});
  }

  void fail_if_stuck() const {
    std::vector<std::string> waits;
    for (int rank = 0; rank < schedule_.num_ranks; ++rank) {
      if (next_[rank] == schedule_.actions[rank].size()) continue;
      for (size_t i = 0; i < group_size(rank); ++i) {
        const PipelineAction& a = schedule_.actions[rank][next_[rank] + i];
        const Inputs inputs = inputs_of(a, rank);
        if (!inputs.missing) continue;
        waits.push_back(fmt::format("rank {} at {} waits for {} of rank {}", rank, to_string(a),
                                    to_string(*inputs.missing),
                                    schedule_.rank_of_stage[inputs.missing->stage]));
      }
    }
    TOK_REQUIRE(waits.empty(), "pipeline schedule {} never ends: {}", schedule_.name,
                fmt::join(waits, "; "));
  }

  const PipelineSchedule& schedule_;
  const PipelineDurations& durations_;
  std::vector<size_t> next_;
  std::vector<double> forward_end_, input_end_, free_;
  Timeline timeline_;
};

}  // namespace

double Timeline::bubble_fraction() const {
  const double total = std::accumulate(busy.begin(), busy.end(), 0.0);
  return total == 0.0 ? 0.0 : makespan * static_cast<double>(busy.size()) / total - 1.0;
}

Timeline simulate_schedule(const PipelineSchedule& schedule, const PipelineDurations& durations) {
  return Simulation(schedule, durations).run();
}

}  // namespace tokamak
