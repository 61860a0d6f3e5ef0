#include "tokamak/pipeline/schedule.h"

#include <algorithm>

#include <fmt/format.h>

#include "tokamak/core/error.h"
#include "tokamak/pipeline/timeline.h"

namespace tokamak {
namespace {

constexpr const char* kRunOnce[] = {"forward", "backward", "input gradient", "weight gradient"};

// What a rank has run so far of each (stage, microbatch).
class Progress {
 public:
  explicit Progress(const PipelineSchedule& schedule)
      : schedule_(schedule),
        ran_(size_t{1} * schedule.num_stages() * schedule.num_microbatches, 0) {}

  void run(int rank, const PipelineAction& a) {
    check_names(rank, a);
    uint8_t& ran = ran_[size_t{1} * a.stage * schedule_.num_microbatches + a.microbatch];
    const auto has = [&](PipelineOp op) { return (ran & bit(op)) != 0; };
    const bool again =
        has(a.op) ||
        (is_backward(a.op) && (has(PipelineOp::kBackward) || has(PipelineOp::kBackwardInput)));
    require(!again, rank, a, "comes a second time");
    if (is_backward(a.op)) {
      require(has(PipelineOp::kForward), rank, a, "comes before its forward");
    }
    if (a.op == PipelineOp::kBackwardWeight) {
      require(!has(PipelineOp::kBackward), rank, a, "follows a B, which already has this gradient");
      require(has(PipelineOp::kBackwardInput), rank, a, "comes before its I");
    }
    ran |= bit(a.op);
  }

  void check_complete() const {
    for (int stage = 0; stage < schedule_.num_stages(); ++stage) {
      for (int m = 0; m < schedule_.num_microbatches; ++m) check_complete(stage, m);
    }
  }

  void require(bool holds, int rank, const PipelineAction& a, const char* what) const {
    TOK_REQUIRE(holds, "pipeline schedule {}: rank {}: {} (stage {}, microbatch {}) {}",
                schedule_.name, rank, to_string(a), a.stage, a.microbatch, what);
  }

 private:
  static uint8_t bit(PipelineOp op) {
    return static_cast<uint8_t>(1U << static_cast<unsigned>(op));
  }

  static bool is_backward(PipelineOp op) {
    return op == PipelineOp::kBackward || op == PipelineOp::kBackwardInput;
  }

  void check_names(int rank, const PipelineAction& a) const {
    TOK_REQUIRE(a.stage >= 0 && a.stage < schedule_.num_stages() && a.microbatch >= 0 &&
                    a.microbatch < schedule_.num_microbatches,
                "pipeline schedule {}: rank {}: {}: wanted stages below {} and microbatches below "
                "{}",
                schedule_.name, rank, to_string(a), schedule_.num_stages(),
                schedule_.num_microbatches);
    TOK_REQUIRE(schedule_.rank_of_stage[a.stage] == rank,
                "pipeline schedule {}: rank {}: {}: stage {} is on rank {}", schedule_.name, rank,
                to_string(a), a.stage, schedule_.rank_of_stage[a.stage]);
  }

  void check_complete(int stage, int microbatch) const {
    const uint8_t ran = ran_[size_t{1} * stage * schedule_.num_microbatches + microbatch];
    for (const PipelineOp op :
         {PipelineOp::kForward, PipelineOp::kBackwardInput, PipelineOp::kBackwardWeight}) {
      const bool done =
          (ran & (op == PipelineOp::kForward ? bit(op) : bit(op) | bit(PipelineOp::kBackward))) !=
          0;
      TOK_REQUIRE(done,
                  "pipeline schedule {}: rank {}: stage {} never runs the {} of microbatch {}",
                  schedule_.name, schedule_.rank_of_stage[stage], stage,
                  kRunOnce[static_cast<size_t>(op)], microbatch);
    }
  }

  const PipelineSchedule& schedule_;
  std::vector<uint8_t> ran_;  // bits by PipelineOp
};

void check_frame(const PipelineSchedule& s) {
  TOK_REQUIRE(s.num_ranks >= 1 && s.num_microbatches >= 1 &&
                  s.actions.size() == static_cast<size_t>(s.num_ranks),
              "pipeline schedule {}: wanted a list for each of {} ranks and at least one "
              "microbatch, got {} lists and {} microbatches",
              s.name, s.num_ranks, s.actions.size(), s.num_microbatches);
  std::vector<int> stages(s.num_ranks, 0);
  for (int stage = 0; stage < s.num_stages(); ++stage) {
    const int rank = s.rank_of_stage[stage];
    TOK_REQUIRE(rank >= 0 && rank < s.num_ranks,
                "pipeline schedule {}: stage {} is on rank {}; there are {} ranks", s.name, stage,
                rank, s.num_ranks);
    ++stages[rank];
  }
  for (int rank = 0; rank < s.num_ranks; ++rank) {
    TOK_REQUIRE(stages[rank] > 0, "pipeline schedule {}: rank {} has no stage", s.name, rank);
  }
}

void check_pairs(const PipelineSchedule& s, int rank, const Progress& progress) {
  const auto& actions = s.actions[rank];
  for (size_t i = 0; i < actions.size(); ++i) {
    if (!actions[i].overlaps_previous) continue;
    const bool pairs =
        i > 0 && actions[i - 1].op == PipelineOp::kForward &&
        (actions[i].op == PipelineOp::kBackward || actions[i].op == PipelineOp::kBackwardInput);
    progress.require(pairs, rank, actions[i],
                     "overlaps what is before it: wanted a forward there and a backward here");
    progress.require(actions[i - 1].microbatch != actions[i].microbatch, rank, actions[i],
                     "overlaps a forward of the same microbatch, which it needs");
  }
}

// Returns +1 where a rank begins to hold a chunk's activations, -1 after the item that frees them.
int change_of(PipelineOp op) {
  switch (op) {
    case PipelineOp::kForward:
      return 1;
    case PipelineOp::kBackward:
    case PipelineOp::kBackwardWeight:
      return -1;
    case PipelineOp::kBackwardInput:
      return 0;
  }
  return 0;
}

}  // namespace

std::string to_string(const PipelineAction& action) {
  return fmt::format("{}{}{}", action.stage, "FBIW"[static_cast<size_t>(action.op)],
                     action.microbatch);
}

std::vector<int> PipelineSchedule::stages_of(int rank) const {
  std::vector<int> stages;
  for (int stage = 0; stage < num_stages(); ++stage) {
    if (rank_of_stage[stage] == rank) stages.push_back(stage);
  }
  return stages;
}

bool PipelineSchedule::splits_backward() const {
  for (const auto& list : actions) {
    for (const PipelineAction& a : list) {
      if (a.op == PipelineOp::kBackwardInput) return true;
    }
  }
  return false;
}

void check_schedule(const PipelineSchedule& schedule) {
  check_frame(schedule);
  Progress progress(schedule);
  for (int rank = 0; rank < schedule.num_ranks; ++rank) {
    for (const PipelineAction& a : schedule.actions[rank]) progress.run(rank, a);
    check_pairs(schedule, rank, progress);
  }
  progress.check_complete();
  // A run with any durations proves that an order of all actions exists; lower_schedule() cuts
  // transfers from it.
  simulate_schedule(schedule, {});
}

std::vector<int> slots_of(const PipelineSchedule& schedule) {
  std::vector<int> held(schedule.num_stages(), 0);
  std::vector<int> peak = held;
  for (const auto& list : schedule.actions) {
    for (const PipelineAction& a : list) {
      held[a.stage] += change_of(a.op);
      peak[a.stage] = std::max(peak[a.stage], held[a.stage]);
    }
  }
  return peak;
}

std::vector<int> chunks_in_flight(const PipelineSchedule& schedule) {
  std::vector<int> peaks;
  for (const auto& list : schedule.actions) {
    int held = 0;
    int peak = 0;
    for (const PipelineAction& a : list) {
      held += change_of(a.op);
      peak = std::max(peak, held);
    }
    peaks.push_back(peak);
  }
  return peaks;
}

}  // namespace tokamak
