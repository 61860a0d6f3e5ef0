// Seconds of a collective, from its members' places in the fabric (docs/pricing.md).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tokamak/graph/op.h"
#include "tokamak/price/machine/machine.h"

namespace tokamak::price {

/// How a group's members lie in the fabric, by level.
struct GroupLayout {
  std::vector<int> members;  ///< of the domain with the most; the last is the group's size
  std::vector<int> fewest;   ///< of the domain with the fewest, but at least one
  std::vector<int> domains;  ///< number of domains with members
  int size = 1;

  bool operator==(const GroupLayout&) const = default;
};

/// Returns the outermost level of the fabric that a collective of the group takes; 0 for one
/// member.
int link_of(const GroupLayout& group);

/// Throws Error if the machine connects fewer devices than the ranks need.
GroupLayout layout_of(std::span<const int> ranks, const Machine& machine);

/// Returns the layout of `size` ranks `stride` apart, from rank `first` on.
GroupLayout strided_layout(int size, int stride, const Machine& machine, int first = 0);

using Collective = Cost::Collective;

/// `bytes` counts the whole buffer, gathered or before it is reduced; for an all-to-all or a
/// message it counts what one rank sends. A message in a group of more than two goes from each rank
/// to the next of a ring.
double collective_seconds(Collective kind, double bytes, const GroupLayout& group,
                          const Machine& machine);

/// Communication as a program runs it.
struct Communication {
  Collective kind = Collective::kAllReduce;
  double bytes = 0.0;           ///< as in collective_seconds()
  bool sums_gradients = false;  ///< in fp32, which travels as software.gradient_bytes
  double exposed = 1.0;         ///< share of its time that nothing hides
};

/// Returns seconds with the launch and the software's call.
double communication_seconds(const Communication& communication, const GroupLayout& group,
                             const Machine& machine);

}  // namespace tokamak::price
