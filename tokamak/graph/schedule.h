// Pipeline schedules as data: which stage computes what for which microbatch, in what order, on
// each pipeline rank. Generators are in parallel/; docs/parallelism.md has the rules.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tokamak {

enum class PipelineOp : uint8_t {
  kForward,         ///< F
  kBackward,        ///< B: input and weight gradients together
  kBackwardInput,   ///< I: input gradient only
  kBackwardWeight,  ///< W: the weight gradient that a kBackwardInput left
};

/// One item of a rank's list. An overlapped pair (DualPipeV's F&B) is a forward followed by a
/// backward with `overlaps_previous` set: a planner may run the two on one segment.
struct PipelineAction {
  PipelineOp op = PipelineOp::kForward;
  int stage = 0;
  int microbatch = 0;
  bool overlaps_previous = false;

  bool operator==(const PipelineAction&) const = default;
};

struct PipelineSchedule {
  std::string name;
  int num_ranks = 1;
  int num_microbatches = 1;
  std::vector<int> rank_of_stage;                    ///< by stage, in model order
  std::vector<std::vector<PipelineAction>> actions;  ///< by rank

  int num_stages() const { return static_cast<int>(rank_of_stage.size()); }

  /// The stages of one rank, in model order.
  std::vector<int> stages_of(int rank) const;

  bool splits_backward() const;
};

/// Throws Error naming rank, stage and microbatch unless every stage runs every microbatch exactly
/// once in each direction, with W after its I, in an order that rendezvous sends between in-order
/// ranks can follow without a deadlock.
void check_schedule(const PipelineSchedule& schedule);

/// For each stage the greatest number of microbatches whose forward has begun and whose last
/// backward item has not ended: slots of saved activations.
std::vector<int> slots_of(const PipelineSchedule& schedule);

}  // namespace tokamak
