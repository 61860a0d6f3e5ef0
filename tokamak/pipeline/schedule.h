// Pipeline schedules as data: which stage computes what for which microbatch, in what order, on
// each pipeline rank; and the list that one rank runs, with its sends and receives. schedules.h
// generates them; docs/parallelism.md has the rules.
#pragma once

#include <compare>
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

/// "2F0": stage 2, forward of microbatch 0.
std::string to_string(const PipelineAction& action);

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

/// Returns for each stage the greatest number of microbatches whose forward has begun and whose
/// last backward item has not ended: it needs this many slots of saved activations.
std::vector<int> slots_of(const PipelineSchedule& schedule);

/// Returns the same for each rank over all its stages at once: it holds activations of this many
/// chunks.
std::vector<int> chunks_in_flight(const PipelineSchedule& schedule);

enum class PipelineItemKind : uint8_t {
  kForward,
  kBackward,
  kBackwardInput,
  kBackwardWeight,
  kSendForward,   ///< the output of `stage`'s forward to the rank of stage + 1
  kRecvForward,   ///< the input of `stage`'s forward from the rank of stage - 1
  kSendBackward,  ///< the input gradient of `stage` to the rank of stage - 1
  kRecvBackward,  ///< the output gradient of `stage` from the rank of stage + 1
};

constexpr bool is_send(PipelineItemKind kind) {
  return kind == PipelineItemKind::kSendForward || kind == PipelineItemKind::kSendBackward;
}

constexpr bool is_recv(PipelineItemKind kind) {
  return kind == PipelineItemKind::kRecvForward || kind == PipelineItemKind::kRecvBackward;
}

/// Whether the item is a message, and so runs in the background.
constexpr bool is_message(PipelineItemKind kind) {
  return is_send(kind) || is_recv(kind);
}

/// One entry of the list that a rank runs. Values between two stages of one rank need no items.
struct PipelineItem {
  PipelineItemKind kind = PipelineItemKind::kForward;
  int stage = 0;
  int microbatch = 0;
  int peer_rank = -1;  ///< pipeline rank; of sends and receives only
  bool overlaps_previous = false;

  bool operator==(const PipelineItem&) const = default;
};

/// "2F0", "2SEND_F0 to 3".
std::string to_string(const PipelineItem& item);

/// Returns what `rank` runs, in order: the schedule's actions with each send right after the action
/// that makes its value (after the second of an overlapped pair) and each receive before the action
/// that reads it (before the first of a pair).
///
/// All ranks' lists are cut from one order of all computations and transfers, the order of a run
/// in unit times. So two ranks receive messages in the order of their sends, whether each
/// direction or each kind has its own communicator or all share one, and with `receives_ahead` = 0
/// nothing can deadlock even where sends and receives both block the rank until the peer comes.
/// With n > 0 receives stand up to n computations earlier, to run under them. Such receives must be
/// posted, and only the actions they feed may wait for them; sends may still block. It costs slots.
///
/// A planner may run a kBackward as an input-gradient and a weight-gradient segment with the send
/// between. REQUIRES: check_schedule() passed.
std::vector<PipelineItem> lower_schedule(const PipelineSchedule& schedule, int rank,
                                         int receives_ahead);

/// What a rank does for a stage in a microbatch: where a value begins or ends to live.
/// kBackwardInput and kBackwardWeight also stand for the kBackward of a microbatch that is not
/// split.
struct PipelinePoint {
  PipelineItemKind kind = PipelineItemKind::kForward;
  int stage = 0;

  auto operator<=>(const PipelinePoint&) const = default;
};

}  // namespace tokamak
