#include "tokamak/pipeline/test_items.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tokamak/core/error.h"

namespace tokamak {
namespace {

using Items = std::vector<PipelineItem>;

bool is_compute(PipelineItemKind kind) {
  return !is_message(kind);
}

// What becomes available: a stage's output, its input gradient, or a copy of either on another
// rank.
using Value = std::tuple<PipelineItemKind, int, int>;  // kind, stage, microbatch

// Runs all ranks' lists in order, with rendezvous sends and in-order messages between two ranks.
class ItemRun {
 public:
  ItemRun(const PipelineSchedule& schedule, const std::vector<Items>& items, bool blocking)
      : schedule_(schedule),
        items_(items),
        blocking_(blocking),
        next_(items.size(), 0),
        waits_(items.size(), false) {}

  void run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (size_t rank = 0; rank < items_.size(); ++rank) {
        while (next_[rank] < items_[rank].size() && step(static_cast<int>(rank))) moved = true;
      }
    }
    std::vector<std::string> waits;
    for (size_t rank = 0; rank < items_.size(); ++rank) {
      if (next_[rank] < items_[rank].size())
        waits.push_back(fmt::format("rank {} at {}", rank, to_string(items_[rank][next_[rank]])));
    }
    TOK_REQUIRE(waits.empty(), "pipeline schedule {}: deadlock: {}", schedule_.name,
                fmt::join(waits, ", "));
    for (const auto& [ranks, posted] : posted_) {
      TOK_REQUIRE(posted.empty(), "pipeline schedule {}: rank {} receives what rank {} never sends",
                  schedule_.name, ranks.second, ranks.first);
    }
  }

 private:
  bool step(int rank) {
    const PipelineItem& item = items_[rank][next_[rank]];
    const Value value{item.kind, item.stage, item.microbatch};
    if (is_recv(item.kind)) return receive(rank, item);
    if (is_send(item.kind)) {
      if (!send(rank, item)) return false;
    } else {
      // Both actions of an overlapped pair need their inputs before the first begins.
      const size_t count = pair_follows(rank) ? 2 : 1;
      for (size_t i = 0; i < count; ++i) {
        if (!has_inputs(rank, items_[rank][next_[rank] + i])) return false;
      }
    }
    done_.insert(value);
    ++next_[rank];
    return true;
  }

  bool pair_follows(int rank) const {
    const size_t next = next_[rank] + 1;
    return next < items_[rank].size() && items_[rank][next].overlaps_previous;
  }

  bool backward_done(int stage, int microbatch) const {
    return done_.contains({PipelineItemKind::kBackward, stage, microbatch}) ||
           done_.contains({PipelineItemKind::kBackwardInput, stage, microbatch});
  }

  bool has_inputs(int rank, const PipelineItem& item) const {
    using enum PipelineItemKind;
    const auto here = [&](int stage) { return schedule_.rank_of_stage[stage] == rank; };
    if (item.kind == kForward) {
      if (item.stage == 0) return true;
      return here(item.stage - 1) ? done_.contains({kForward, item.stage - 1, item.microbatch})
                                  : arrived_.contains({kRecvForward, item.stage, item.microbatch});
    }
    if (item.kind == kBackwardWeight) return backward_done(item.stage, item.microbatch);
    if (!done_.contains({kForward, item.stage, item.microbatch})) return false;
    if (item.stage + 1 == schedule_.num_stages()) return true;
    return here(item.stage + 1) ? backward_done(item.stage + 1, item.microbatch)
                                : arrived_.contains({kRecvBackward, item.stage, item.microbatch});
  }

  bool receive(int rank, const PipelineItem& item) {
    const Value value{item.kind, item.stage, item.microbatch};
    if (waits_[rank]) {
      if (!arrived_.contains(value)) return false;
      waits_[rank] = false;
      ++next_[rank];
      return true;
    }
    TOK_REQUIRE(done_.insert(value).second, "pipeline schedule {}: rank {}: {} comes twice",
                schedule_.name, rank, to_string(item));
    posted_[{item.peer_rank, rank}].push_back(value);
    if (blocking_) {
      waits_[rank] = true;
    } else {
      ++next_[rank];
    }
    return true;
  }

  bool send(int rank, const PipelineItem& item) {
    using enum PipelineItemKind;
    const bool forward = item.kind == kSendForward;
    TOK_REQUIRE(forward ? done_.contains({kForward, item.stage, item.microbatch})
                        : backward_done(item.stage, item.microbatch),
                "pipeline schedule {}: rank {}: {} comes before what it sends", schedule_.name,
                rank, to_string(item));
    std::deque<Value>& posted = posted_[{rank, item.peer_rank}];
    if (posted.empty()) return false;
    const Value value{forward ? kRecvForward : kRecvBackward, item.stage + (forward ? 1 : -1),
                      item.microbatch};
    TOK_REQUIRE(posted.front() == value,
                "pipeline schedule {}: rank {}: {} meets another receive of rank {}: stage {}, "
                "microbatch {}",
                schedule_.name, rank, to_string(item), item.peer_rank, std::get<1>(posted.front()),
                std::get<2>(posted.front()));
    posted.pop_front();
    arrived_.insert(value);
    return true;
  }

  const PipelineSchedule& schedule_;
  const std::vector<Items>& items_;
  bool blocking_;
  std::vector<size_t> next_;
  std::vector<bool> waits_;  // at a posted, blocking receive
  std::set<Value> done_;
  std::set<Value> arrived_;
  std::map<std::pair<int, int>, std::deque<Value>> posted_;  // by sender and receiver
};

std::vector<std::string> computations(const Items& items) {
  std::vector<std::string> texts;
  for (const PipelineItem& item : items) {
    if (is_compute(item.kind)) texts.push_back(to_string(item));
  }
  return texts;
}

}  // namespace

void check_items(const PipelineSchedule& schedule, const std::vector<Items>& items,
                 bool blocking_receives) {
  for (int rank = 0; rank < schedule.num_ranks; ++rank) {
    std::vector<std::string> wanted;
    for (const PipelineAction& a : schedule.actions[rank]) wanted.push_back(to_string(a));
    TOK_REQUIRE(computations(items[rank]) == wanted,
                "pipeline schedule {}: rank {}: the items' computations are not the schedule's",
                schedule.name, rank);
  }
  ItemRun(schedule, items, blocking_receives).run();
}

}  // namespace tokamak
