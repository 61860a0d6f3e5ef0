// Activations and their gradients of which 8-bit codes are moved in place of values.
#pragma once

#include <map>
#include <string>

#include "tokamak/graph/graph.h"
#include "tokamak/parallel/matmuls/float8_table.h"

namespace tokamak {

/// What a node brings to matmuls of codes: rows of `origin`, or of what the ranks of tp have in its
/// place. All rows are quantized where they come from, under one scale.
struct CarriedCodes {
  Value origin;
  Float8Role role = Float8Role::kX;
  std::string module;  ///< of a matmul that reads them
};

/// Returns the nodes of a graph of one rank that move rows (gathers over `tp`, the shifts of rings,
/// parts and their joins) which nothing but matmuls of codes reads. A recipe with other grids than
/// kTensor has none, and neither has a value of which codes are transposed and whose rows are no
/// multiple of 16, since that takes no padding.
std::map<int32_t, CarriedCodes> find_code_carriers(const Graph& graph, const Float8Recipe& recipe,
                                                   const CommGroup& tp);

/// Whether `node` moves rows between ranks.
bool crosses_ranks(const Node& node);

}  // namespace tokamak
