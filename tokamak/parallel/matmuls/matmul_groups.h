// Which matmuls of one input can be merged into one.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tokamak/graph/graph.h"
#include "tokamak/parallel/matmuls/packed_heads.h"

namespace tokamak {

/// A weight or bias where it lies, and the node that makes its gradient.
struct MatmulTensor {
  Value value;
  Value bucket;       ///< its flat bucket
  int64_t begin = 0;  ///< in the bucket
  int64_t end = 0;
  int32_t grad = -1;  ///< node
  StateId gradient;   ///< a window, to which node `grad` adds
};

/// One weight's part in a merged matmul.
struct MatmulMember {
  int32_t grad_input = -1;  ///< node
  Value dy;
  MatmulTensor weight;
  MatmulTensor bias;  ///< has no node if there is none
};

/// Members in the order in which their weights lie, without gaps.
struct MatmulGroup {
  std::vector<MatmulMember> members;
  /// This op returns the output gradients side by side, or node `packed_grad` does once it is
  /// packed, or the attention's gradient.
  AnyOp packer;
  std::vector<Value> packer_in;
  int32_t packed_grad = -1;
  std::optional<PackedHeads> heads;
  std::vector<int32_t> matmuls;  ///< forward matmuls, merged too
  int32_t activation = -1;       ///< the node that reads them
};

/// A sum of input gradients.
struct MatmulSum {
  std::vector<Value> terms;     ///< in order
  std::vector<int32_t> inside;  ///< nodes of all its sums
};

struct MatmulGroups {
  std::vector<MatmulGroup> groups;
  std::map<int32_t, MatmulSum> sums;  ///< with merged terms, by the node of the whole sum
};

/// Finds the groups in a graph of one rank; see merge_matmuls.h.
MatmulGroups find_matmul_groups(const Graph& graph, std::vector<std::string>& notes);

}  // namespace tokamak
