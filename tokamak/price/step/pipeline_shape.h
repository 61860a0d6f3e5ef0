// A pipeline schedule and its stages as closed forms read them: what follows what, and what is held
// when. Depends on neither model nor machine; docs/pricing.md.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tokamak/pipeline/schedule.h"
#include "tokamak/plan/slots.h"

namespace tokamak::price {

/// What a pipeline stage holds.
struct StageModules {
  int layers = 0;
  bool has_embedding = false;
  bool has_head = false;  ///< with the last norm

  /// Each with a bucket of its own.
  int num_parts() const { return layers + (has_embedding ? 1 : 0) + (has_head ? 1 : 0); }

  bool operator==(const StageModules&) const = default;
};

/// A stage's work for one microbatch. A backward that is not split is all kBackward.
enum class StageWork : uint8_t { kForward, kBackward, kWeight };

/// One step of a short schedule as a graph of works, in an order in which all that a work needs
/// comes before it.
struct PipelinePass {
  int num_stages = 0;
  int num_ranks = 0;
  int num_microbatches = 0;
  std::vector<int32_t> duration;    ///< by work: duration_index(), or of a message
  std::vector<int32_t> first_need;  ///< by work, and one more: where its needs begin
  std::vector<int32_t> needs;       ///< works

  /// Three works of a stage, each in four kinds of microbatch.
  static constexpr int kDurationsOfStage = 12;

  /// Stages' works differ in their first microbatch, which overwrites gradients, and in their last,
  /// which reduces them.
  static int duration_index(int stage, StageWork work, bool is_first, bool is_last) {
    return stage * kDurationsOfStage + static_cast<int>(work) * 4 + (is_first ? 2 : 0) +
           (is_last ? 1 : 0);
  }

  /// REQUIRES: of a work, not of a message.
  static int stage_of(int index) { return index / kDurationsOfStage; }

  /// That of a message from rank to rank, which are neighbours on a ring.
  int message_index(int from, int to) const {
    return num_stages * kDurationsOfStage + 2 * from + ((from + 1) % num_ranks == to ? 0 : 1);
  }

  bool is_message(int index) const { return index >= num_stages * kDurationsOfStage; }
};

/// From which item of a stage to which its values are held.
struct HeldKind {
  PipelineItemKind from = PipelineItemKind::kForward;
  PipelineItemKind to = PipelineItemKind::kBackward;

  auto operator<=>(const HeldKind&) const = default;
};

/// Values of one stage that are held in one rank, at the points of a step that matter.
struct HeldValues {
  int stage = 0;
  HeldKind kind;
  std::vector<int> held;  ///< microbatches at each point
};

struct PipelineShape {
  std::string schedule;
  int num_ranks = 1;
  int num_microbatches = 1;
  std::vector<StageModules> stages;
  std::vector<int> rank_of_stage;
  std::vector<std::vector<int>> stages_of;  ///< by rank, in model order
  std::vector<StageModules> modules_of;     ///< by rank: of all its stages together
  bool is_split = false;
  std::vector<int> in_flight;  ///< by rank: microbatches of any of its stages, forward to the end

  /// A step, or one of fewer microbatches beyond which a schedule only repeats itself. Empty until
  /// add_schedule().
  PipelinePass pass;
  PipelinePass shorter;  ///< of num_ranks microbatches fewer, where the step has more than `pass`
  std::vector<std::vector<HeldValues>> held;  ///< by rank, in model order
};

/// Without its schedule. REQUIRES: stages in model order, as many as `name` wants on so many ranks.
PipelineShape pipeline_outline(const std::string& name, int num_ranks,
                               std::vector<StageModules> stages, int num_microbatches);

/// Fills `pass`, `shorter` and `held`.
void add_schedule(PipelineShape& shape);

}  // namespace tokamak::price
