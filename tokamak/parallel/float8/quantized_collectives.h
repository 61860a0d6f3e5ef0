// Activations and their gradients of which tensor parallelism gathers quantized values instead of
// values.
#pragma once

#include <map>
#include <string>

#include "tokamak/graph/graph.h"
#include "tokamak/parallel/float8/float8_table.h"

namespace tokamak {

/// What a gather brings to quantized matmuls. All rows are quantized where they come from, under
/// one scale.
struct QuantizedCollective {
  Float8Role role = Float8Role::kX;
  std::string module;  ///< of a matmul that reads them
};

/// Returns the gathers over `tp` whose results nothing but quantized matmuls reads. A recipe with
/// other grids than kTensor has none, and neither has a value of which quantized values are
/// transposed and whose rows are no multiple of 16, since that takes no padding.
std::map<int32_t, QuantizedCollective> find_quantized_collectives(const Graph& graph,
                                                                  const Float8Recipe& recipe,
                                                                  const CommGroup& tp);

}  // namespace tokamak
