#include "tokamak/price/step/pipeline_shape.h"

#include <algorithm>

#include "tokamak/pipeline/schedules.h"

namespace tokamak::price {
namespace {

// Beyond this many microbatches per rank, and beyond the least number, a schedule only repeats
// itself.
constexpr int kRepeatsAfter = 3;
constexpr int kLeastRepeatsAfter = 48;

ItemLists lists_of(const PipelineShape& shape, int num_microbatches) {
  const int stages_per_rank = static_cast<int>(shape.stages.size()) / shape.num_ranks;
  const PipelineSchedule schedule =
      make_schedule(shape.schedule, shape.num_ranks, stages_per_rank, num_microbatches);
  return {.num_microbatches = num_microbatches,
          .of_rank = lower_schedules(schedule, shape.receives_ahead)};
}

}  // namespace

PipelineShape pipeline_outline(const std::string& name, int num_ranks,
                               std::vector<StageModules> stages, int num_microbatches) {
  const int p = num_ranks;
  const int stages_per_rank = static_cast<int>(stages.size()) / p;
  PipelineShape shape{.schedule = name,
                      .num_ranks = p,
                      .num_microbatches = num_microbatches,
                      .stages = std::move(stages)};
  const PipelineSchedule schedule = make_schedule(
      name, p, stages_per_rank, std::min(num_microbatches, 2 * p + num_microbatches % p));
  shape.rank_of_stage = schedule.rank_of_stage;
  shape.stages_of.resize(p);
  shape.modules_of.resize(p);
  for (int s = 0; s < std::ssize(shape.stages); ++s) {
    const auto rank = static_cast<size_t>(shape.rank_of_stage[s]);
    shape.stages_of[rank].push_back(s);
    StageModules& all = shape.modules_of[rank];
    const StageModules& stage = shape.stages[s];
    all.layers += stage.layers;
    all.has_embedding |= stage.has_embedding;
    all.has_head |= stage.has_head;
  }
  shape.is_split = schedule.splits_backward();
  shape.in_flight = chunks_in_flight(schedule);
  return shape;
}

void add_items(PipelineShape& shape) {
  const int p = shape.num_ranks;
  const int m = shape.num_microbatches;
  const int longest = std::max(kRepeatsAfter, (kLeastRepeatsAfter + p - 1) / p) * p + m % p;
  shape.items = lists_of(shape, std::min(m, longest));
  if (m > longest) shape.shorter = lists_of(shape, longest - p);
}

}  // namespace tokamak::price
