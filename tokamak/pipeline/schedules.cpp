#include "tokamak/pipeline/schedules.h"

#include <algorithm>
#include <array>
#include <cctype>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tokamak/core/error.h"
#include "tokamak/core/names.h"

namespace tokamak {
namespace {

PipelineSchedule empty_schedule(std::string name, int num_ranks, int stages_per_rank,
                                int num_microbatches, StageOrder order) {
  TOK_CHECK(num_ranks >= 1 && stages_per_rank >= 1 && num_microbatches >= 1,
            "{} of {} ranks, {} stages each, {} microbatches", name, num_ranks, stages_per_rank,
            num_microbatches);
  PipelineSchedule s{
      .name = std::move(name), .num_ranks = num_ranks, .num_microbatches = num_microbatches};
  for (int stage = 0; stage < num_ranks * stages_per_rank; ++stage) {
    const int lap = stage / num_ranks;
    const bool returns = order == StageOrder::kV && lap % 2 == 1;
    s.rank_of_stage.push_back(returns ? num_ranks - 1 - stage % num_ranks : stage % num_ranks);
  }
  s.actions.resize(num_ranks);
  return s;
}

// One microbatch of one chunk of a rank.
struct ChunkStep {
  int chunk = 0;
  int microbatch = 0;
};

// Each group has at least `group_size` microbatches where there are enough. Sizes are as equal as
// they can be, larger ones first.
std::vector<int> group_sizes(int num_microbatches, int group_size) {
  const int num_groups = std::max(1, num_microbatches / group_size);
  std::vector<int> sizes(num_groups, num_microbatches / num_groups);
  for (int i = 0; i < num_microbatches % num_groups; ++i) ++sizes[i];
  return sizes;
}

// Each group runs through all chunks before the next begins.
std::vector<ChunkStep> grouped_steps(int num_chunks, const std::vector<int>& groups) {
  std::vector<ChunkStep> steps;
  int begin = 0;
  for (const int size : groups) {
    for (int chunk = 0; chunk < num_chunks; ++chunk) {
      for (int i = 0; i < size; ++i) steps.push_back({chunk, begin + i});
    }
    begin += size;
  }
  return steps;
}

// One rank of the 1F1B family runs `lead` forwards, then forward and backward in turns, then the
// rest of the backwards.
struct OneForwardOneBackward {
  int num_ranks = 1;
  int rank = 0;
  int num_chunks = 1;
  int lead = 0;
  bool split = false;
  int weight_lag = 0;  // backward steps by which W comes late

  std::vector<PipelineAction> list(const std::vector<ChunkStep>& steps) const {
    const int count = static_cast<int>(steps.size());
    const int head = std::min(lead, count);
    std::vector<PipelineAction> actions;
    int weights = 0;
    const auto forward = [&](int i) {
      actions.push_back({PipelineOp::kForward, stage(steps[i].chunk), steps[i].microbatch});
    };
    const auto backward = [&](PipelineOp op, int i) {
      actions.push_back({op, stage(num_chunks - 1 - steps[i].chunk), steps[i].microbatch});
    };
    for (int i = 0; i < head; ++i) forward(i);
    for (int i = 0; i < count; ++i) {
      const bool steady = head + i < count;
      if (steady) forward(head + i);
      backward(split ? PipelineOp::kBackwardInput : PipelineOp::kBackward, i);
      if (split && (!steady || i >= weight_lag)) {
        backward(PipelineOp::kBackwardWeight, weights++);
      }
    }
    while (split && weights < count) backward(PipelineOp::kBackwardWeight, weights++);
    return actions;
  }

  int stage(int chunk) const { return chunk * num_ranks + rank; }
};

// Appends to the list of one rank of a V and counts each stage's microbatches.
class VList {
 public:
  VList(int num_ranks, int rank, int num_microbatches)
      : stage_{rank, 2 * num_ranks - 1 - rank}, num_microbatches_(num_microbatches) {}

  void forward(int leg) { add(PipelineOp::kForward, leg, forwards_[leg]++); }

  void backward(int leg) { add(PipelineOp::kBackward, leg, backwards_[leg]++); }

  /// Appends an input gradient; its weight gradient waits for weight().
  void backward_input(int leg) {
    pending_.push_back({leg, backwards_[leg]});
    add(PipelineOp::kBackwardInput, leg, backwards_[leg]++);
  }

  /// Appends the oldest weight gradient that waits, or the oldest of one leg.
  void weight(int only_leg = -1) {
    const auto found = std::ranges::find_if(
        pending_, [&](const ChunkStep& w) { return only_leg < 0 || w.chunk == only_leg; });
    TOK_CHECK(found != pending_.end(), "no weight gradient waits");
    add(PipelineOp::kBackwardWeight, found->chunk, found->microbatch);
    pending_.erase(found);
  }

  void overlapped(int forward_leg, int backward_leg) {
    const size_t before = actions_.size();
    forward(forward_leg);
    backward(backward_leg);
    if (actions_.size() == before + 2) actions_.back().overlaps_previous = true;
  }

  int forwards(int leg) const { return forwards_[leg]; }

  bool has_pending() const { return !pending_.empty(); }

  bool has_pending(int leg) const {
    return std::ranges::any_of(pending_, [&](const ChunkStep& w) { return w.chunk == leg; });
  }

  std::vector<PipelineAction> take() { return std::move(actions_); }

 private:
  // Both schedules assume enough microbatches; those that do not exist leave gaps, which close.
  void add(PipelineOp op, int leg, int microbatch) {
    if (microbatch < num_microbatches_) actions_.push_back({op, stage_[leg], microbatch});
  }

  std::array<int, 2> stage_;
  int num_microbatches_;
  std::array<int, 2> forwards_{};
  std::array<int, 2> backwards_{};
  std::vector<ChunkStep> pending_;
  std::vector<PipelineAction> actions_;
};

template <class Function>
void repeat(int times, Function&& function) {
  for (int i = 0; i < times; ++i) function(i);
}

std::vector<PipelineAction> zbv_list(int p, int r, int num_microbatches) {
  const int m = std::max(2 * p - 1, num_microbatches);
  VList list(p, r, num_microbatches);
  const auto backward = [&](int leg) {
    list.backward_input(leg);
    list.weight(leg);
  };
  repeat(2 * (p - r) - 1, [&](int) { list.forward(0); });
  repeat(r, [&](int) {
    list.forward(1);
    list.forward(0);
  });
  repeat(p - r, [&](int) {
    list.forward(1);
    backward(1);
  });
  while (list.forwards(1) < m) {
    if (list.forwards(0) < m) list.forward(0);
    backward(0);
    list.forward(1);
    backward(1);
  }
  // The drain runs input gradients first, since other ranks wait for them, and fills the gaps with
  // weight gradients.
  repeat(r, [&](int) {
    list.backward_input(0);
    list.backward_input(1);
  });
  repeat(p - r, [&](int) {
    list.backward_input(0);
    list.weight(0);
  });
  while (list.has_pending(1)) list.weight(1);
  while (list.has_pending(0)) list.weight(0);
  return list.take();
}

std::vector<PipelineAction> dual_pipe_v_list(int p, int r, int num_microbatches) {
  const int m = std::max(2 * p, num_microbatches);
  const int after = p - 1 - r;  // ranks further down the V
  VList list(p, r, num_microbatches);
  repeat(2 * after, [&](int) { list.forward(0); });
  repeat(r + 1, [&](int) {
    list.forward(0);
    list.forward(1);
  });
  repeat(after, [&](int) {
    list.backward_input(1);
    list.weight();
    list.forward(1);
  });
  repeat(m - 2 * p + r + 1, [&](int i) {
    if (i == 0 && after == 0) {
      list.forward(0);
      list.backward(1);
    } else {
      list.overlapped(0, 1);
    }
    list.overlapped(1, 0);
  });
  repeat(after, [&](int) {
    list.backward(1);
    list.overlapped(1, 0);
  });
  // From the middle on weight gradients are kept back for the gaps of the drain.
  const int first_split = 2 * ((r + 1) / 2) + (r % 2 == 0 ? 1 : 0);
  repeat(2 * (r + 1), [&](int i) {
    const int leg = i % 2 == 0 ? 1 : 0;
    if (i < first_split) {
      list.backward(leg);
    } else {
      list.backward_input(leg);
    }
  });
  repeat(after, [&](int) {
    list.weight();
    list.backward_input(0);
  });
  while (list.has_pending()) list.weight();
  return list.take();
}

// Runs all forwards of a chunk, then the next chunk, and backwards in reverse order. With one stage
// per rank it is GPipe.
PipelineSchedule looped_bfs(int num_ranks, int stages_per_rank, int num_microbatches) {
  PipelineSchedule s = empty_schedule(stages_per_rank == 1 ? "GPipe" : "LoopedBFS", num_ranks,
                                      stages_per_rank, num_microbatches, StageOrder::kLoop);
  for (int rank = 0; rank < num_ranks; ++rank) {
    for (int chunk = 0; chunk < stages_per_rank; ++chunk) {
      for (int i = 0; i < num_microbatches; ++i)
        s.actions[rank].push_back({PipelineOp::kForward, chunk * num_ranks + rank, i});
    }
    for (int chunk = stages_per_rank - 1; chunk >= 0; --chunk) {
      for (int i = 0; i < num_microbatches; ++i)
        s.actions[rank].push_back({PipelineOp::kBackward, chunk * num_ranks + rank, i});
    }
  }
  return s;
}

PipelineSchedule interleaved_1f1b(int num_ranks, int stages_per_rank, int num_microbatches) {
  return grouped_1f1b(num_ranks, stages_per_rank, num_microbatches, num_ranks);
}

// Interleaved 1F1B with half the lead of early ranks and with weight gradients delayed: rank r runs
// W r chunks late and fills the drain with them. The bubble is (p-1)(F+I-W) where W <= F, and every
// rank has p * stages_per_rank chunks in flight (arXiv 2401.10241; with one stage per rank it is
// ZB-H1).
PipelineSchedule interleaved_zero_bubble(int num_ranks, int stages_per_rank, int num_microbatches) {
  PipelineSchedule s = empty_schedule("InterleavedZeroBubble", num_ranks, stages_per_rank,
                                      num_microbatches, StageOrder::kLoop);
  const auto groups = group_sizes(num_microbatches, num_ranks);
  const auto steps = grouped_steps(stages_per_rank, groups);
  for (int rank = 0; rank < num_ranks; ++rank) {
    s.actions[rank] =
        OneForwardOneBackward{.num_ranks = num_ranks,
                              .rank = rank,
                              .num_chunks = stages_per_rank,
                              .lead = num_ranks - 1 - rank + (stages_per_rank - 1) * groups[0],
                              .split = true,
                              .weight_lag = rank}
            .list(steps);
  }
  return s;
}

// ZB-V (arXiv 2405.15362) has two stages per rank in a V; with F = I = W no rank waits between its
// first and last item, at 2p chunks in flight.
PipelineSchedule zbv_zero_bubble(int num_ranks, int, int num_microbatches) {
  PipelineSchedule s =
      empty_schedule("ZBVZeroBubble", num_ranks, 2, num_microbatches, StageOrder::kV);
  for (int rank = 0; rank < num_ranks; ++rank)
    s.actions[rank] = zbv_list(num_ranks, rank, num_microbatches);
  return s;
}

// DualPipeV is the V with overlapped forward-backward pairs and 2p + 1 chunks in flight.
PipelineSchedule dual_pipe_v(int num_ranks, int, int num_microbatches) {
  PipelineSchedule s = empty_schedule("DualPipeV", num_ranks, 2, num_microbatches, StageOrder::kV);
  for (int rank = 0; rank < num_ranks; ++rank)
    s.actions[rank] = dual_pipe_v_list(num_ranks, rank, num_microbatches);
  return s;
}

std::string lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

const std::vector<ScheduleKind>& kinds() {
  static const std::vector<ScheduleKind> kKinds = {
      {"GPipe", 1, true, StageOrder::kLoop, true, looped_bfs},
      {"1F1B", 1, true, StageOrder::kLoop, false, interleaved_1f1b},
      {"Interleaved1F1B", 2, false, StageOrder::kLoop, false, interleaved_1f1b},
      {"LoopedBFS", 2, false, StageOrder::kLoop, true, looped_bfs},
      {"InterleavedZeroBubble", 2, false, StageOrder::kLoop, false, interleaved_zero_bubble},
      {"ZBVZeroBubble", 2, true, StageOrder::kV, false, zbv_zero_bubble},
      {"DualPipeV", 2, true, StageOrder::kV, false, dual_pipe_v},
      {"VHalf", 2, true, StageOrder::kV, false, v_half},
      {"VMin", 2, true, StageOrder::kV, false, v_min},
  };
  return kKinds;
}

}  // namespace

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const ScheduleKind& kind : kinds()) names.push_back(kind.name);
  return names;
}

ScheduleKind schedule_kind(const std::string& name) {
  for (const ScheduleKind& kind : kinds()) {
    if (lower_case(kind.name) == lower_case(name)) return kind;
  }
  const std::vector<std::string> names = schedule_names();
  fail("parallelism.pipeline_parallel_schedule: wanted one of {}, got {}{}", fmt::join(names, ", "),
       printable(name), nearest_hint(name, names));
}

PipelineSchedule make_schedule(const std::string& name, int num_ranks, int stages_per_rank,
                               int num_microbatches) {
  const ScheduleKind kind = schedule_kind(name);
  const int wanted = kind.default_stages_per_rank;
  TOK_REQUIRE(!kind.fixed_stages_per_rank || stages_per_rank == wanted,
              "parallelism.pipeline_parallel_schedule = {}: wanted {} a rank ({} x {} ranks = {} "
              "stages), got {} ({} stages){}",
              kind.name, wanted == 1 ? "1 stage" : "2 stages", wanted, num_ranks,
              wanted * num_ranks, stages_per_rank, stages_per_rank * num_ranks,
              wanted == 1 ? "; Interleaved1F1B and LoopedBFS take any number" : "");
  return kind.make(num_ranks, stages_per_rank, num_microbatches);
}

PipelineSchedule grouped_1f1b(int num_ranks, int stages_per_rank, int num_microbatches,
                              int group_size) {
  PipelineSchedule s = empty_schedule(stages_per_rank == 1 ? "1F1B" : "Interleaved1F1B", num_ranks,
                                      stages_per_rank, num_microbatches, StageOrder::kLoop);
  const auto groups = group_sizes(num_microbatches, std::max(group_size, num_ranks));
  const auto steps = grouped_steps(stages_per_rank, groups);
  for (int rank = 0; rank < num_ranks; ++rank) {
    // Interleaved ranks have other chunks to run while a microbatch goes to the last rank and back.
    const int after = num_ranks - 1 - rank;
    const int lead = stages_per_rank == 1 ? after : 2 * after + (stages_per_rank - 1) * groups[0];
    s.actions[rank] =
        OneForwardOneBackward{
            .num_ranks = num_ranks, .rank = rank, .num_chunks = stages_per_rank, .lead = lead}
            .list(steps);
  }
  return s;
}

PipelineSchedule repeat_schedule(const PipelineSchedule& schedule, int times) {
  TOK_CHECK(times >= 1, "{} times", times);
  PipelineSchedule repeated = schedule;
  repeated.num_microbatches = times * schedule.num_microbatches;
  for (size_t rank = 0; rank < schedule.actions.size(); ++rank) {
    for (int time = 1; time < times; ++time) {
      for (PipelineAction action : schedule.actions[rank]) {
        action.microbatch += time * schedule.num_microbatches;
        repeated.actions[rank].push_back(action);
      }
    }
  }
  return repeated;
}

}  // namespace tokamak
