#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

#include <fmt/format.h>

#include "tokamak/pipeline/schedule.h"
#include "tokamak/pipeline/timeline.h"

namespace tokamak {
namespace {

PipelineItemKind kind_of(PipelineOp op) {
  switch (op) {
    case PipelineOp::kForward:
      return PipelineItemKind::kForward;
    case PipelineOp::kBackward:
      return PipelineItemKind::kBackward;
    case PipelineOp::kBackwardInput:
      return PipelineItemKind::kBackwardInput;
    case PipelineOp::kBackwardWeight:
      return PipelineItemKind::kBackwardWeight;
  }
  return PipelineItemKind::kForward;
}

// A value that goes from one rank to another when an action ends.
struct Transfer {
  PipelineItem send;
  PipelineItem recv;
};

std::optional<Transfer> transfer_after(const PipelineSchedule& s, const PipelineAction& a) {
  if (a.op == PipelineOp::kBackwardWeight) return std::nullopt;
  const bool forward = a.op == PipelineOp::kForward;
  const int to = a.stage + (forward ? 1 : -1);
  if (to < 0 || to >= s.num_stages()) return std::nullopt;
  const int from_rank = s.rank_of_stage[a.stage];
  const int to_rank = s.rank_of_stage[to];
  if (from_rank == to_rank) return std::nullopt;
  using enum PipelineItemKind;
  return Transfer{.send = {.kind = forward ? kSendForward : kSendBackward,
                           .stage = a.stage,
                           .microbatch = a.microbatch,
                           .peer_rank = to_rank},
                  .recv = {.kind = forward ? kRecvForward : kRecvBackward,
                           .stage = to,
                           .microbatch = a.microbatch,
                           .peer_rank = from_rank}};
}

// An item between the computations of a rank. All ranks order transfers alike: by the end of the
// action that makes the value, then by its rank and its index there.
struct PlacedItem {
  size_t before = 0;  // index of the rank's action that follows
  std::tuple<double, int, size_t> order;
  PipelineItem item;
};

// Where the transfers of a rank stand among its actions, by the times of a run.
class RankStarts {
 public:
  explicit RankStarts(const std::vector<TimedAction>& list) {
    for (size_t i = 0; i < list.size(); ++i) {
      if (list[i].action.overlaps_previous) continue;
      begin_.push_back(list[i].begin);
      first_.push_back(i);
    }
    first_.push_back(list.size());
  }

  /// Returns the first action that begins at `time` or later, or the one `starts_earlier` before
  /// it.
  size_t first_after(double time, int starts_earlier) const {
    const auto start = std::lower_bound(begin_.begin(), begin_.end(), time) - begin_.begin();
    return first_[std::max<std::ptrdiff_t>(start - starts_earlier, 0)];
  }

 private:
  std::vector<double> begin_;  // of each start; an overlapped pair has one
  std::vector<size_t> first_;  // index of the action that starts; at last the number of actions
};

// Returns the sends and receives of `rank`.
std::vector<PlacedItem> place_transfers(const PipelineSchedule& schedule, int rank,
                                        int receives_ahead) {
  const Timeline timeline = simulate_schedule(schedule, {});
  const RankStarts starts(timeline.ranks[rank]);
  std::vector<PlacedItem> placed;
  for (int from = 0; from < schedule.num_ranks; ++from) {
    for (size_t i = 0; i < timeline.ranks[from].size(); ++i) {
      const TimedAction& timed = timeline.ranks[from][i];
      const auto transfer = transfer_after(schedule, timed.action);
      if (!transfer) continue;
      const std::tuple<double, int, size_t> order{timed.end, from, i};
      if (from == rank) placed.push_back({starts.first_after(timed.end, 0), order, transfer->send});
      if (transfer->send.peer_rank == rank)
        placed.push_back({starts.first_after(timed.end, receives_ahead), order, transfer->recv});
    }
  }
  std::ranges::sort(placed, [](const PlacedItem& a, const PlacedItem& b) {
    return std::tie(a.before, a.order) < std::tie(b.before, b.order);
  });
  return placed;
}

std::vector<PipelineItem> merged(const std::vector<PipelineAction>& actions,
                                 const std::vector<PlacedItem>& transfers) {
  std::vector<PipelineItem> items;
  items.reserve(actions.size() + transfers.size());
  auto transfer = transfers.begin();
  for (size_t i = 0; i < actions.size(); ++i) {
    for (; transfer != transfers.end() && transfer->before == i; ++transfer)
      items.push_back(transfer->item);
    items.push_back({.kind = kind_of(actions[i].op),
                     .stage = actions[i].stage,
                     .microbatch = actions[i].microbatch,
                     .overlaps_previous = actions[i].overlaps_previous});
  }
  for (; transfer != transfers.end(); ++transfer) items.push_back(transfer->item);
  return items;
}

}  // namespace

std::string to_string(const PipelineItem& item) {
  constexpr const char* kNames[] = {"F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B"};
  std::string text =
      fmt::format("{}{}{}", item.stage, kNames[static_cast<size_t>(item.kind)], item.microbatch);
  if (is_send(item.kind)) text += fmt::format(" to {}", item.peer_rank);
  if (is_recv(item.kind)) text += fmt::format(" from {}", item.peer_rank);
  return text;
}

std::vector<PipelineItem> lower_schedule(const PipelineSchedule& schedule, int rank,
                                         int receives_ahead) {
  return merged(schedule.actions[rank], place_transfers(schedule, rank, receives_ahead));
}

}  // namespace tokamak
