// Which products of one input can be one.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tokamak/graph/graph.h"

namespace tokamak {

/// One weight's part in a merged product.
struct ProductMember {
  int32_t grad_input = -1;   ///< node
  int32_t grad_weight = -1;  ///< node
  Value dy;
  Value weight;
  Value bucket;       ///< that holds the weight, flat
  int64_t begin = 0;  ///< of the weight in it
  int64_t end = 0;
  StateId gradient;  ///< a window, to which grad_weight adds
};

/// Members in the order in which their weights lie, without gaps.
struct ProductGroup {
  std::vector<ProductMember> members;
  AnyOp packer;  ///< yields the output gradients side by side
  std::vector<Value> packer_in;
  int32_t packed_grad = -1;       ///< or the node that will, once it is packed
  std::vector<int32_t> products;  ///< of the forward, merged too
  int32_t activation = -1;        ///< the node that reads them
};

/// A sum of input gradients.
struct ProductSum {
  std::vector<Value> terms;     ///< in order
  std::vector<int32_t> inside;  ///< nodes of all its sums
};

struct ProductGroups {
  std::vector<ProductGroup> groups;
  std::map<int32_t, ProductSum> sums;  ///< that have merged terms, by the node of the whole
};

/// Of a graph of one rank; see merge_products.h.
ProductGroups find_product_groups(const Graph& graph, std::vector<std::string>& notes);

}  // namespace tokamak
