// Which strategy each node of the global graph takes on each axis, and how its operands are placed.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "tokamak/core/enum_array.h"
#include "tokamak/graph/graph.h"
#include "tokamak/graph/mesh.h"
#include "tokamak/parallel/partition.h"

namespace tokamak {

/// The axes that place values. dp is dp_replicate x dp_shard: both cut the batch.
enum class PlacementAxis : uint8_t { kDp, kCp, kTp };
inline constexpr size_t kNumPlacementAxes = 3;

struct PlacementAxisTraits {
  std::string_view name;
  AxisSet mesh;                            ///< its mesh axes
  std::string_view degree_key;             ///< the key that sets its degree
  std::span<const LogicalAxis> cuts;       ///< dims of parameters, inputs and activations
  std::optional<MeshAxis> localizes = {};  ///< OpRules::localize sees it as this axis
};

const PlacementAxisTraits& traits_of(PlacementAxis axis);

using Placement = EnumArray<PlacementAxis, AxisPlacement, kNumPlacementAxes>;

/// Extents that shapes do not show.
struct ModelAxes {
  int64_t num_heads = 1;
  int64_t num_kv_heads = 1;
};

struct NodePlacement {
  EnumArray<PlacementAxis, Strategy, kNumPlacementAxes> strategy;  ///< empty on axes of size 1
  std::vector<Placement> in;                                       ///< as the strategies want them
  std::vector<Placement> out;
};

/// Returns placements by node of the graph. Tensor-parallel ranks cut the sequence between blocks,
/// or each hold all of it if `sequence_parallel` is false. Throws Error naming the op and the axis
/// where no strategy fits, and where an axis leaves a rank without a part of a parameter: "tp 8 is
/// more than the model's 4 heads".
std::vector<NodePlacement> decide_placements(const Graph& graph, const Mesh& mesh,
                                             const ModelAxes& model, bool sequence_parallel = true);

/// Whether the ranks of tp hold equal parts of all weights of blocks. Otherwise they merge other
/// matmuls, at other costs, so what costs decide differs between them.
bool cuts_blocks_evenly(const Graph& global, const std::vector<NodePlacement>& placements);

}  // namespace tokamak
