// One training step of a mesh, priced: two runs of the event loop, over the tasks of a segment and
// over the items of the ranks' schedules (docs/pricing.md).
#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

#include "tokamak/core/enum_array.h"
#include "tokamak/core/progress.h"
#include "tokamak/plan/plan.h"
#include "tokamak/price/task/task_time.h"

namespace tokamak::price {

/// A rank that stands for all that do the same: either one of each stage is priced, or all are.
struct PricedRank {
  const Plan* plan = nullptr;
  int rank = 0;                        ///< of the world
  const GroupTable* groups = nullptr;  ///< replaces the plan's, if ranks share a plan
};

struct PricedSpan {
  int rank = 0;  ///< index into the priced ranks
  int stream = 0;
  const Task* task = nullptr;
  int microbatch = 0;
  double begin_s = 0.0;
  double end_s = 0.0;
};

struct StepPrice {
  double seconds = 0.0;
  int slowest = 0;       ///< index of the priced rank with the least bubble
  int slowest_rank = 0;  ///< its rank of the world
  EnumArray<Category, double, kNumCategories>
      by_category{};             ///< of the slowest rank; sums to seconds
  double hidden_comm_s = 0.0;    ///< under compute, of the same rank
  double bubble_fraction = 0.0;  ///< mean over ranks of idle over the step
  std::vector<double> bubble_s;  ///< by priced rank
  int64_t events = 0;            ///< number of Works that the event loop ended
};

/// `num_microbatches` matters only if the plans have no items. `spans`, if given, gets every task
/// of the step in order of rank and begin. Throws Bug if the plans wait for each other forever.
StepPrice price_step(std::span<const PricedRank> ranks, int num_microbatches,
                     const Machine& machine, const PriceOptions& options,
                     std::vector<PricedSpan>* spans = nullptr, const Progress& progress = {});

}  // namespace tokamak::price
