// A pipeline schedule and its stages as estimates of its step read them. The shape depends on
// neither model nor machine; docs/pricing.md.
#pragma once

#include <string>
#include <vector>

#include "tokamak/pipeline/schedule.h"

namespace tokamak::price {

/// What a pipeline stage holds.
struct StageModules {
  int layers = 0;
  bool has_embedding = false;
  bool has_head = false;  ///< with the last norm
};

/// The items of a pipeline's ranks for a number of microbatches.
struct ItemLists {
  int num_microbatches = 0;
  std::vector<std::vector<PipelineItem>> of_rank;
};

struct PipelineShape {
  std::string schedule;
  int num_ranks = 1;
  int num_microbatches = 1;
  int receives_ahead = 1;         ///< of the items (lower_schedule)
  bool overlaps_gathers = false;  ///< the first forwards run beside the gathers of a step's weights
  std::vector<StageModules> stages;
  std::vector<int> rank_of_stage;
  std::vector<std::vector<int>> stages_of;  ///< by rank, in model order
  std::vector<StageModules> modules_of;     ///< by rank: of all its stages together
  bool is_split = false;
  std::vector<int> in_flight;  ///< by rank: microbatches of any of its stages, forward to the end

  /// Set by add_items(): the items of all microbatches, or of enough that more only repeat, and
  /// then also those of one round less.
  ItemLists items;
  ItemLists shorter;
};

/// REQUIRES: stages are in model order, as many as the schedule `name` has on that many ranks.
PipelineShape pipeline_outline(const std::string& name, int num_ranks,
                               std::vector<StageModules> stages, int num_microbatches);

void add_items(PipelineShape& shape);

}  // namespace tokamak::price
