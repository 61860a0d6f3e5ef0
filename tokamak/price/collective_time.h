// Seconds of a collective, from where its members are in the fabric.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tokamak/price/machine.h"

namespace tokamak::price {

/// How a group's members lie in the fabric: by level, how many share one domain of that level with
/// a member (the largest over members). The last is the group's size.
struct GroupLayout {
  std::vector<int> members;
  int size = 1;
  /// Groups of the same kind that run at once and share one device's outer links; 1 if each device
  /// has its own.
  int sharing = 1;
};

GroupLayout layout_of(std::span<const int> ranks, const Machine& machine);

enum class Collective : uint8_t {
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kAllToAll,
  kBroadcast,
  kSendRecv
};

/// `bytes` is the whole buffer: gathered, or before it is reduced; what one rank sends in an
/// all-to-all or a message.
double collective_seconds(Collective kind, double bytes, const GroupLayout& group,
                          const Machine& machine);

}  // namespace tokamak::price
