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

  /// Moves `nodes`, in this order, right in front of node `at`.
  void in_front_of(int32_t at, const std::vector<int32_t>& nodes) { move(nodes, in_front_of_[at]); }

  /// Moves `nodes`, in this order, right behind node `at`.
  void behind(int32_t at, const std::vector<int32_t>& nodes) { move(nodes, behind_[at]); }

  bool moves_any() const { return !is_moved_.empty(); }

  Graph finish() const {
    Rewriter rewriter(graph_);
    const auto copy = [&](const std::map<int32_t, std::vector<int32_t>>& moved, int32_t at) {
      const auto found = moved.find(at);
      if (found == moved.end()) return;
      for (const int32_t i : found->second) rewriter.copy(i);
    };
    for (int32_t i = 0; i < graph_.size(); ++i) {
      copy(in_front_of_, i);
      if (!is_moved_.contains(i)) rewriter.copy(i);
      copy(behind_, i);
    }
    return rewriter.finish();
  }

 private:
  void move(const std::vector<int32_t>& nodes, std::vector<int32_t>& to) {
    for (const int32_t i : nodes) {
      if (is_moved_.insert(i).second) to.push_back(i);
    }
  }

  const Graph& graph_;
  std::map<int32_t, std::vector<int32_t>> in_front_of_;
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
