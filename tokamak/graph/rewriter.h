// The means by which a pass makes its new graph.
#pragma once

#include <map>
#include <utility>

#include "tokamak/core/error.h"
#include "tokamak/graph/graph.h"

namespace tokamak {

/// Copies nodes of one graph into another and remembers what each value became.
class Rewriter {
 public:
  explicit Rewriter(const Graph& from) : from_(from), to(from.states()) {}

  /// Returns `node` with its inputs replaced by what they have become.
  Node moved(const Node& node) {
    Node copy = node;
    for (Value& v : copy.in) v = (*this)(v);
    for (Accumulation& a : copy.accumulations) a.into = (*this)(a.into);
    return copy;
  }

  void copy(int32_t i) {
    if (from_.node(i).is_leaf() && map_.contains({i, 0})) return;
    put(i, moved(from_.node(i)));
  }

  /// Appends what node `i` has become.
  void put(int32_t i, Node node) {
    const size_t num_out = node.out.size();
    const int32_t id = to.append(std::move(node));
    for (int32_t k = 0; k < static_cast<int32_t>(num_out); ++k) map({i, k}, {id, k});
  }

  void map(Value old_value, Value new_value) { map_[old_value] = new_value; }

  Value operator()(Value v) {
    if (!v.valid()) return v;
    if (from_.producer(v).is_leaf()) copy(v.node);
    const auto it = map_.find(v);
    TOK_CHECK(it != map_.end(), "value %{}.{} is used before it is made", v.node, v.out);
    return it->second;
  }

  Graph finish() {
    to.label = from_.label;
    for (const Value v : from_.roots) to.roots.push_back((*this)(v));
    return std::move(to);
  }

 private:
  const Graph& from_;
  std::map<Value, Value> map_;

 public:
  Graph to;
};

}  // namespace tokamak
