// Passes that move a few nodes to other places in the order of a graph.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "tokamak/graph/rewriter.h"

namespace tokamak {

/// Remembers where nodes move to, each at most once, and makes the graph in the new order.
class Reorder {
 public:
  explicit Reorder(const Graph& graph) : graph_(graph) {}

  /// Moves `nodes`, in this order, right behind node `at`.
  void behind(int32_t at, const std::vector<int32_t>& nodes) {
    for (const int32_t i : nodes) {
      if (is_moved_.insert(i).second) behind_[at].push_back(i);
    }
  }

  bool moves_any() const { return !is_moved_.empty(); }

  Graph finish() const {
    Rewriter rewriter(graph_);
    for (int32_t i = 0; i < graph_.size(); ++i) {
      if (!is_moved_.contains(i)) rewriter.copy(i);
      const auto moved = behind_.find(i);
      if (moved == behind_.end()) continue;
      for (const int32_t j : moved->second) rewriter.copy(j);
    }
    return rewriter.finish();
  }

 private:
  const Graph& graph_;
  std::map<int32_t, std::vector<int32_t>> behind_;
  std::set<int32_t> is_moved_;
};

/// Returns whether a node reads only leaves and what `is_there` holds for (an index), be it through
/// views that come later. Appends these views to `views` in their order.
template <class F>
bool reads_only(const Graph& graph, const Node& node, const F& is_there,
                std::vector<int32_t>& views) {
  return std::all_of(node.in.begin(), node.in.end(), [&](Value v) {
    const Node& producer = graph.producer(v);
    if (producer.is_leaf() || is_there(v.node)) return true;
    if (!producer.rules->is_view || !reads_only(graph, producer, is_there, views)) return false;
    views.push_back(v.node);
    return true;
  });
}

}  // namespace tokamak
