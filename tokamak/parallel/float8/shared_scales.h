// Which operands of quantized matmuls share scales.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "tokamak/graph/graph.h"
#include "tokamak/parallel/float8/float8_recipe.h"
#include "tokamak/parallel/low_precision.h"

namespace tokamak {

/// By weight of a forward matmul: the weights that share its scale, which are those that read the
/// same input.
using SharedScales = std::map<Value, std::vector<Value>>;

SharedScales find_shared_scales(const Graph& graph, const Float8Recipe& recipe);

/// Returns the bucket in which a weight lies, and where, or nothing for one that lies in none.
std::optional<std::pair<Value, int64_t>> place_in_bucket(const Graph& graph, Value weight);

/// Output gradients that share scales, since the weights do by which they are multiplied.
struct SharedGradients {
  std::map<Value, std::vector<Value>> all_of;    ///< by such a gradient
  std::set<int32_t> waits;                       ///< nodes that read one before all are made
  std::map<int32_t, std::set<int32_t>> waiting;  ///< the same, by the node before which they run
};

SharedGradients find_shared_gradients(const Graph& graph, const SharedScales& weights_of,
                                      const Float8Recipe& recipe);

}  // namespace tokamak
