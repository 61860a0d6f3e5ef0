// Attention that reads what three products make, and may read it as one.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tokamak/graph/graph.h"
#include "tokamak/ops/attention/rope.h"

namespace tokamak {

/// The nodes that read each value, in order.
using ValueReaders = std::map<Value, std::vector<int32_t>>;

struct PackedHeads {
  int32_t attention = -1;
  int32_t gradient = -1;
  std::optional<Rope> rope;  ///< of the heads of queries and keys
  Value positions;
  std::vector<int32_t> inside;  ///< nodes between products and attention, both ways
};

/// Where the output gradients `dy` of three products are those of the queries, keys and values of
/// one attention, which alone reads the products, its place; `products` are then their nodes, in
/// that order. Else nothing, and `why` not.
std::optional<PackedHeads> find_packed_heads(const Graph& graph, const ValueReaders& readers,
                                             const std::vector<Value>& dy,
                                             std::vector<int32_t>& products, std::string& why);

}  // namespace tokamak
