#include "tokamak/graph/gather_early.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include "tokamak/graph/cover_collectives.h"
#include "tokamak/graph/reorder.h"

namespace tokamak {
namespace {

bool is_of_same_block(const Node& a, const Node& b) {
  return a.label.phase == b.label.phase && a.label.stage == b.label.stage &&
         a.label.block == b.label.block;
}

class Early {
 public:
  Early(const Graph& graph, const Rates& rates)
      : graph_(graph), rates_(rates), order_(static_cast<size_t>(graph.size())) {
    std::iota(order_.begin(), order_.end(), 0);
  }

  Graph run() {
    bool has_moved = false;
    std::set<int32_t> gathers;  // of one attention
    for (int32_t i = 0; i < graph_.size(); ++i) {
      const Node& node = graph_.node(i);
      if (node.is_leaf()) continue;
      if (!gathers.empty() && (!is_of_same_block(node, graph_.node(*gathers.begin())) ||
                               node_cost(graph_, node).kind == Cost::Kind::kAttention)) {
        has_moved |= move(std::move(gathers));
        gathers.clear();
      }
      if (is_gather(node)) gathers.insert(i);
      if (is_sum_of_head(node)) has_moved |= move_sum(i);
    }
    if (!gathers.empty()) has_moved |= move(std::move(gathers));
    if (!has_moved) return graph_;
    Rewriter rewriter(graph_);
    for (const int32_t i : order_) {
      if (!graph_.node(i).is_leaf()) rewriter.copy(i);
    }
    return rewriter.finish();
  }

 private:
  bool is_gather(const Node& node) const {
    return !node.is_leaf() && node.rules->is_communication && node.stream == kContextStream &&
           node_cost(graph_, node).collective == Cost::Collective::kAllGather;
  }

  static bool is_sum_of_head(const Node& node) {
    return node.rules->is_communication && node.stream == kCoveredSumStream &&
           node.label.phase == Phase::kForward && node.label.block < 0;
  }

  // Moves sum `i`, together with the views that it reads, to the node that makes what is summed.
  // Returns whether the order has changed.
  bool move_sum(int32_t i) {
    std::set<int32_t> leads{i};
    const auto last = std::find(order_.begin(), order_.end(), i);
    auto first = last;
    bool has_passed = false;
    for (auto at = last; at != order_.begin();) {
      --at;
      const Node& before = graph_.node(*at);
      if (before.is_leaf()) continue;
      const bool is_read = is_read_by(leads, *at);
      if (before.label.phase != Phase::kForward || before.rules->is_communication ||
          (is_read && !before.rules->is_view))
        break;
      if (is_read) leads.insert(*at);
      has_passed |= !is_read;
      first = at;
    }
    if (!has_passed) return false;
    std::stable_partition(first, last + 1, [&](int32_t n) { return leads.contains(n); });
    return true;
  }

  // Whether the node has to keep its place although its inputs would allow another.
  static bool is_bound(const Node& node) {
    if (!node.accumulations.empty() || node.rules->has_side_effect) return true;
    const auto aliases = node.rules->aliases(node.op.get());
    return std::any_of(aliases.begin(), aliases.end(), [](const Alias& a) { return a.must; });
  }

  // Walks back from the last gather and collects the nodes that the gathers depend on, until the
  // matmuls passed take as long as the gathers. Returns whether the order has changed.
  bool move(std::set<int32_t> leads) {
    const Node& node = graph_.node(*leads.rbegin());
    double left = 0.0;
    for (const int32_t gather : leads)
      left += flops_beside(node_cost(graph_, graph_.node(gather)), kContextStream, rates_);
    const auto last = std::find(order_.begin(), order_.end(), *leads.rbegin());
    auto first = last;  // of what is reordered
    for (auto at = last; left > 0.0 && at != order_.begin();) {
      --at;
      const Node& before = graph_.node(*at);
      if (before.is_leaf()) continue;
      if (!is_of_same_block(before, node)) break;
      if (leads.contains(*at)) continue;
      if (is_read_by(leads, *at)) {
        // All ranks issue the collectives of other groups in the same order.
        if (is_bound(before) || before.rules->is_communication) break;
        leads.insert(*at);
        continue;
      }
      const Cost c = node_cost(graph_, before);
      // Weight gradients run late and overlap other collectives.
      if (c.kind != Cost::Kind::kGemm || c.product == Cost::Product::kWeightGradient) continue;
      left -= c.flops;
      first = at;
    }
    if (first == last) return false;
    std::stable_partition(first, last + 1, [&](int32_t i) { return leads.contains(i); });
    return true;
  }

  bool is_read_by(const std::set<int32_t>& readers, int32_t i) const {
    return std::any_of(readers.begin(), readers.end(), [&](int32_t reader) {
      const Node& node = graph_.node(reader);
      return std::any_of(node.in.begin(), node.in.end(),
                         [&](Value v) { return v.valid() && v.node == i; });
    });
  }

  const Graph& graph_;
  const Rates& rates_;
  std::vector<int32_t> order_;
};

class Together {
 public:
  explicit Together(const Graph& graph) : graph_(graph), order_(graph) {}

  Graph run() {
    int32_t at = -1;  // the node that the last sum of the block waits for
    for (int32_t i = 0; i < graph_.size(); ++i) {
      const Node& node = graph_.node(i);
      if (node.is_leaf() || node.label.phase != Phase::kBackward || node.label.block < 0) continue;
      if (at >= 0 && !is_of_same_block(node, graph_.node(at))) at = -1;
      if (!node.rules->is_communication) continue;
      if (node.stream == kCoveredSumStream) {
        at = maker_of(node);
      } else if (node.stream == kContextStream && !is_gather(node)) {
        at = -1;  // calls on one stream keep their order
      } else if (at >= 0 && is_gather(node)) {
        move(i, at);
      }
    }
    return order_.moves_any() ? order_.finish() : graph_;
  }

 private:
  // Returns the last node that makes what the sum reads, after which the sum can begin, or -1 if
  // that node is in another segment.
  int32_t maker_of(const Node& node) const {
    int32_t last = -1;
    for (Value v : node.in) {
      while (!graph_.producer(v).is_leaf() && graph_.producer(v).rules->is_view)
        v = graph_.producer(v).in[0];
      last = std::max(last, v.node);
    }
    return last >= 0 && !graph_.node(last).is_leaf() && is_of_same_block(graph_.node(last), node)
               ? last
               : -1;
  }

  bool is_gather(const Node& node) const {
    return node.stream == kContextStream &&
           node_cost(graph_, node).collective == Cost::Collective::kAllGather;
  }

  // Moves gather `i` behind node `at` if its inputs are there.
  void move(int32_t i, int32_t at) {
    std::vector<int32_t> moved;
    const auto is_there = [&](int32_t made) { return made <= at; };
    if (!reads_only(graph_, graph_.node(i), is_there, moved)) return;
    moved.push_back(i);
    order_.behind(at, moved);
  }

  const Graph& graph_;
  Reorder order_;
};

}  // namespace

Graph gather_early(const Graph& graph, const Rates& rates) {
  return Early(graph, rates).run();
}

Graph gather_together(const Graph& graph) {
  return Together(graph).run();
}

}  // namespace tokamak
