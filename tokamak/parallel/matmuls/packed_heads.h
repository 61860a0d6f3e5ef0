// Finds attention that reads the outputs of three matmuls and may read them as one.
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
  std::vector<int32_t> inside;  ///< nodes between matmuls and attention, forward and backward
};

/// Returns the attention whose gradients of queries, keys and values are the output gradients `dy`
/// of three matmuls that only it reads, and sets `matmuls` to their nodes, in that order. Else
/// returns nothing and says `why`.
std::optional<PackedHeads> find_packed_heads(const Graph& graph, const ValueReaders& readers,
                                             const std::vector<Value>& dy,
                                             std::vector<int32_t>& matmuls, std::string& why);

}  // namespace tokamak
