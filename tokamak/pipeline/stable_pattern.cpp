// Schedules that repeat one pattern of a V every six chunks (arXiv 2405.15362).
#include <algorithm>
#include <array>
#include <deque>

#include "tokamak/pipeline/schedules.h"

namespace tokamak {
namespace {

constexpr int kPeriod = 6;  // a forward, an input and a weight gradient of two chunks

// When the first microbatch's forward runs on the way down and up the V, then its input gradients,
// in units of one chunk's time. Offsets differ modulo the period.
using Offsets = std::array<int, 4>;

Offsets v_min_offsets(int p, int r) {
  const int k = p % 3 == 0 ? 2 : 0;
  return {r, 2 * p - r - 1, 2 * p + k + r, 4 * p + k - r - 1};
}

Offsets v_half_offsets(int p, int r) {
  const int k = p % 2 == 0 ? 3 : 0;
  return {2 * r, 3 * p - r - 2, 3 * p + k + 2 * r - 1, 6 * p + k - r - 2};
}

// Returns the pattern in time, with weight gradients, oldest first, in its gaps.
std::vector<PipelineAction> pattern_list(int p, int r, int num_microbatches,
                                         const Offsets& offsets) {
  const int down = r;
  const int up = 2 * p - 1 - r;
  const std::array<int, 4> stages{down, up, up, down};
  std::vector<PipelineAction> actions;
  std::deque<PipelineAction> weights;
  const int end = offsets[3] + kPeriod * num_microbatches;
  for (int time = 0; time < end; ++time) {
    bool is_busy = false;
    for (size_t i = 0; i < offsets.size(); ++i) {
      const int since = time - offsets[i];
      if (since < 0 || since % kPeriod != 0 || since / kPeriod >= num_microbatches) continue;
      is_busy = true;
      const int microbatch = since / kPeriod;
      const bool is_forward = i < 2;
      actions.push_back(
          {is_forward ? PipelineOp::kForward : PipelineOp::kBackwardInput, stages[i], microbatch});
      if (!is_forward) weights.push_back({PipelineOp::kBackwardWeight, stages[i], microbatch});
    }
    if (is_busy || weights.empty()) continue;
    actions.push_back(weights.front());
    weights.pop_front();
  }
  actions.insert(actions.end(), weights.begin(), weights.end());
  return actions;
}

PipelineSchedule of_pattern(const std::string& name, int num_ranks, int num_microbatches,
                            Offsets (*offsets)(int p, int r)) {
  PipelineSchedule s{.name = name, .num_ranks = num_ranks, .num_microbatches = num_microbatches};
  for (int stage = 0; stage < 2 * num_ranks; ++stage)
    s.rank_of_stage.push_back(std::min(stage, 2 * num_ranks - 1 - stage));
  for (int r = 0; r < num_ranks; ++r)
    s.actions.push_back(pattern_list(num_ranks, r, num_microbatches, offsets(num_ranks, r)));
  return s;
}

}  // namespace

PipelineSchedule v_half(int num_ranks, int, int num_microbatches) {
  return of_pattern("VHalf", num_ranks, num_microbatches, v_half_offsets);
}

PipelineSchedule v_min(int num_ranks, int, int num_microbatches) {
  return of_pattern("VMin", num_ranks, num_microbatches, v_min_offsets);
}

}  // namespace tokamak
