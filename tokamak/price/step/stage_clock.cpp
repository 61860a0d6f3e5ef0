#include "tokamak/price/step/stage_clock.h"

#include <cmath>

#include "tokamak/price/task/step_clock.h"

namespace tokamak::price {
namespace {

// Between `a` and `b`, of which this is the share of `b`.
StageSum between(const StageSum& a, const StageSum& b, double share) {
  StageSum sum;
  for (double StageSum::*part :
       {&StageSum::base, &StageSum::layer, &StageSum::embedding, &StageSum::head})
    sum.*part = a.*part + share * (b.*part - a.*part);
  return sum;
}

StageSeconds between(const StageSeconds& a, const StageSeconds& b, double share) {
  StageSeconds seconds = a;
  for (WorkSeconds StageSeconds::*work :
       {&StageSeconds::forward, &StageSeconds::backward, &StageSeconds::first_backward,
        &StageSeconds::weight, &StageSeconds::first_weight}) {
    for (StageSum WorkSeconds::*part :
         {&WorkSeconds::alone, &WorkSeconds::beside_message, &WorkSeconds::communication})
      (seconds.*work).*part = between((a.*work).*part, (b.*work).*part, share);
  }
  return seconds;
}

// Of a rank that updates this share of what it holds.
double clock_of(int rank, const StageCosts& costs, const PipelineShape& shape,
                const Machine& machine, double updated) {
  PowerUse use;
  for (const int s : shape.stages_of[rank]) {
    const StageModules& stage = shape.stages[s];
    use.products_s += shape.num_microbatches * costs.power.products_s(stage);
    use.attention_s += shape.num_microbatches * costs.power.attention_s(stage);
    use.memory_s += shape.num_microbatches * costs.power.memory_s(stage) +
                    updated * costs.elements(stage) * costs.update_s;
    use.collective_s += shape.num_microbatches * costs.power.collective_s(stage);
    use.drawn_s += shape.num_microbatches * costs.power.drawn_s(stage);
  }
  return step_clock(use, machine.device);
}

}  // namespace

std::vector<StageSeconds> seconds_by_rank(const StageCosts& costs, const PipelineShape& shape,
                                          const PipelineRanks& ranks, const Machine& machine,
                                          double updated) {
  const double exponent = machine.device.gemm_clock_exponent;
  const auto time_at = [&](double clock) { return std::pow(clock, -exponent); };
  const double fast = time_at(costs.fast_clock);
  const double slow = time_at(costs.slow_clock);
  std::vector<StageSeconds> seconds;
  for (int r = 0; r < shape.num_ranks; ++r) {
    const int place = ranks.places[r];
    const StagePlace& at = costs.places[place];
    if (slow == fast) {
      seconds.push_back(at.fast);
      continue;
    }
    const double time = time_at(clock_of(r, costs, shape, machine, updated));
    seconds.push_back(between(at.fast, at.slow, (time - fast) / (slow - fast)));
  }
  return seconds;
}

}  // namespace tokamak::price
