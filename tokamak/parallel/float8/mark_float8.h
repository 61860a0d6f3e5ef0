// Which matmuls are computed in 8-bit floats.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tokamak/graph/graph.h"
#include "tokamak/parallel/float8/float8_recipe.h"

namespace tokamak {

/// Returns why the matmuls of a weight of this name and these dims stay in the compute dtype, or ""
/// if they are quantized.
using Float8Filter = std::function<std::string(const std::string& name, const Dims& dims)>;

/// The name under which filters get the head, whether or not it is tied to the embedding.
inline constexpr const char* kHeadWeight = "lm_head.weight";

/// Which matmuls of blocks and of the head are quantized.
struct Float8Layers {
  Float8Filter filter;
  int64_t bf16_at_start = 0;  ///< blocks of the model that stay in the compute dtype
  int64_t bf16_at_end = 0;
  bool long_loss_chunks = false;  ///< as long as with a head in the compute dtype
};

/// The result of mark_float8().
struct Float8Marks {
  int weights = 0;  ///< of blocks
  int matmuls = 0;  ///< of blocks; weights of one input are one matmul
  bool head = false;
};

/// Sets `float8` of the linear ops of blocks and of the head's loss, and of their gradients, in a
/// graph of global shapes: merge_matmuls() keeps such ops apart and quantize_matmuls() replaces
/// them. Appends each weight that stays in the compute dtype, with its reason, to `notes`.
Float8Marks mark_float8(Graph& graph, const Float8Layers& layers, std::vector<std::string>& notes);

/// Throws Error if a marked matmul has weights on this rank whose dims the recipe does not take.
void require_float8_dims(const Graph& graph, const Float8Recipe& recipe);

/// Whether a node of a forward or backward reads a weight other than quantized.
bool is_read_as_values(const Graph& graph, Value weight);

}  // namespace tokamak
