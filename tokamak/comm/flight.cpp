#include "tokamak/comm/flight.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tokamak {

std::string_view name_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllGather:
      return "all_gather";
    case CollectiveKind::kReduceScatter:
      return "reduce_scatter";
    case CollectiveKind::kAllReduce:
      return "all_reduce";
    case CollectiveKind::kAllToAll:
      return "all_to_all";
    case CollectiveKind::kBroadcast:
      return "broadcast";
    case CollectiveKind::kSendRecv:
      return "send_recv";
    case CollectiveKind::kBarrier:
      return "barrier";
  }
  return "unknown";
}

void FlightLane::enter(CollectiveKind call, DType of, int64_t elements, uint64_t now) {
  kind.store(call, std::memory_order_relaxed);
  dtype.store(of, std::memory_order_relaxed);
  count.store(elements, std::memory_order_relaxed);
  stamp.store(now, std::memory_order_relaxed);
  calls_entered.fetch_add(1, std::memory_order_release);
}

bool FlightPage::is_in_collective() const {
  const uint32_t used = std::min(num_lanes.load(std::memory_order_acquire), kMaxLanes);
  const auto all = std::span(lanes).first(used);
  return std::ranges::any_of(all, [](const FlightLane& lane) {
    const uint64_t finished = lane.calls_finished.load(std::memory_order_acquire);
    return lane.calls_entered.load(std::memory_order_acquire) > finished;
  });
}

FlightLane* FlightPage::add_lane(std::string_view group) {
  const uint32_t used = num_lanes.load(std::memory_order_relaxed);
  if (used == kMaxLanes) return &lanes[kMaxLanes - 1];
  FlightLane& lane = lanes[used];
  const auto length = std::min(group.size(), sizeof lane.group - 1);
  std::copy_n(group.data(), length, lane.group);
  num_lanes.store(used + 1, std::memory_order_release);
  return &lane;
}

namespace {

std::string describe_call(const FlightLane& lane, uint64_t number) {
  const int64_t count = lane.count.load(std::memory_order_relaxed);
  const std::string_view dtype = name_of(lane.dtype.load(std::memory_order_relaxed));
  return fmt::format("{} {} of \"{}\" ({} {})", name_of(lane.kind.load(std::memory_order_relaxed)),
                     number, lane.group, count, dtype);
}

}  // namespace

std::string describe(const FlightPage& page) {
  std::vector<std::string> calls;
  const FlightLane* last = nullptr;
  const uint32_t num_lanes =
      std::min(page.num_lanes.load(std::memory_order_acquire), FlightPage::kMaxLanes);
  for (const FlightLane& lane : std::span(page.lanes).first(num_lanes)) {
    const uint64_t finished = lane.calls_finished.load(std::memory_order_acquire);
    const uint64_t entered = lane.calls_entered.load(std::memory_order_acquire);
    if (entered > finished) calls.push_back("in " + describe_call(lane, entered));
    if (entered > finished + 1) calls.back() += fmt::format(", {} ended", finished);
    if (entered > 0 && (last == nullptr || lane.stamp > last->stamp)) last = &lane;
  }
  if (calls.empty()) {
    calls.push_back(last == nullptr ? "has entered no collective"
                                    : "left " + describe_call(*last, last->calls_entered));
  }
  // The host is written before the first lane.
  const std::string host = num_lanes > 0 ? fmt::format(" ({})", page.host) : "";
  return fmt::format("rank {}{}: {}", page.rank.load(), host, fmt::join(calls, ", "));
}

}  // namespace tokamak
