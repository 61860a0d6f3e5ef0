#include "tokamak/graph/passes.h"

#include <algorithm>
#include <map>

#include "tokamak/core/error.h"
#include "tokamak/graph/rewriter.h"

namespace tokamak {
namespace {

// Writes State or speaks to another rank.
bool acts(const Node& node) {
  if (node.is_leaf()) return false;
  if (!node.accumulations.empty() || node.rules->has_side_effect) return true;
  for (const Alias& alias : node.rules->aliases(node.op.get())) {
    if (alias.must) return true;
  }
  return false;
}

}  // namespace

Graph expand_composites(const Graph& graph) {
  Rewriter rewriter(graph);
  for (int32_t i = 0; i < graph.size(); ++i) {
    const Node& node = graph.node(i);
    if (node.is_leaf() || !node.rules->is_composite) {
      rewriter.copy(i);
      continue;
    }
    const LabelScope scope(rewriter.to, node.label);
    const std::vector<Value> out =
        node.rules->expand(node.op.get(), rewriter.to, rewriter.moved(node));
    TOK_CHECK(out.size() == node.out.size(), "{}: expands to {} values", node.rules->name,
              out.size());
    for (size_t k = 0; k < out.size(); ++k) {
      if (!out[k].valid()) continue;
      TOK_CHECK(rewriter.to.type(out[k]) == node.out[k], "{}: output {} expands to {}",
                node.rules->name, k, to_string(rewriter.to.type(out[k])));
      rewriter.map({i, static_cast<int32_t>(k)}, out[k]);
    }
  }
  return rewriter.finish();
}

Graph eliminate_dead(const Graph& graph) {
  std::vector<bool> live(static_cast<size_t>(graph.size()), false);
  for (const Value v : graph.roots) live[static_cast<size_t>(v.node)] = true;
  for (int32_t i = graph.size(); i-- > 0;) {
    const Node& node = graph.node(i);
    if (acts(node)) live[static_cast<size_t>(i)] = true;
    if (!live[static_cast<size_t>(i)]) continue;
    for_each_use(node, [&](Value v) { live[static_cast<size_t>(v.node)] = true; });
  }
  Rewriter rewriter(graph);
  for (int32_t i = 0; i < graph.size(); ++i) {
    if (live[static_cast<size_t>(i)]) rewriter.copy(i);
  }
  return rewriter.finish();
}

namespace {

// Decides for each node whether its outputs are kept for the backward.
std::vector<bool> kept_nodes(const Graph& graph, const RecomputePolicy& policy) {
  using Mode = RecomputePolicy::Mode;
  std::vector<bool> kept(static_cast<size_t>(graph.size()));
  for (int32_t i = 0; i < graph.size(); ++i)
    kept[static_cast<size_t>(i)] = !graph.node(i).is_dropped;
  std::map<std::pair<int32_t, std::string_view>, int> seen;
  for (int32_t i = 0; i < graph.size(); ++i) {
    const Node& node = graph.node(i);
    const bool in_block = node.label.phase == Phase::kForward && node.label.block >= 0;
    if (node.is_leaf() || node.is_dropped || !in_block || policy.mode == Mode::kNone || acts(node))
      continue;
    bool keep = false;
    if (policy.mode == Mode::kSelectiveLayers) {
      keep = (node.label.block + 1) % policy.every_nth_block != 0;
    } else if (policy.mode == Mode::kSelectiveOps) {
      keep = policy.saved_ops.contains(node.rules->name);
      if (policy.halved_ops.contains(node.rules->name)) {
        keep = seen[{node.label.block, node.rules->name}]++ % 2 == 0;
      }
    }
    kept[static_cast<size_t>(i)] = keep;
  }
  // What the next block (or what follows the blocks) reads is a block's input: always kept.
  for (int32_t i = 0; i < graph.size(); ++i) {
    const Node& user = graph.node(i);
    if (user.label.phase != Phase::kForward) continue;
    for_each_use(user, [&](Value v) {
      if (graph.producer(v).label.block != user.label.block)
        kept[static_cast<size_t>(v.node)] = true;
    });
  }
  return kept;
}

// Clones on demand, memoized: one clone of a forward node at most.
class Recomputer {
 public:
  Recomputer(const Graph& graph, const RecomputePolicy& policy)
      : graph_(graph), kept_(kept_nodes(graph, policy)), rewriter_(graph) {
    for (int32_t i = 0; i < graph.size(); ++i) {
      const Node& node = graph.node(i);
      if (node.is_dropped) dropped_[{node.label.stage, node.label.module}].push_back(i);
    }
  }

  Graph run() {
    for (int32_t i = 0; i < graph_.size(); ++i) {
      const Node& node = graph_.node(i);
      if (node.is_leaf() || node.label.phase != Phase::kBackward) {
        rewriter_.copy(i);
        continue;
      }
      // One module ahead, so that its gather runs beside this one's backward.
      for (const int32_t module : {node.label.module, node.label.module - 1})
        make_dropped_again(node.label.stage, module);
      Node copy = node;
      for (Value& v : copy.in) v = for_backward(v, node.label);
      for (Accumulation& a : copy.accumulations) a.into = rewriter_(a.into);
      rewriter_.put(i, std::move(copy));
    }
    return rewriter_.finish();
  }

 private:
  void make_dropped_again(int32_t stage, int32_t module) {
    const auto it = dropped_.find({stage, module});
    if (it == dropped_.end()) return;
    for (const int32_t i : it->second) for_backward({i, 0}, graph_.node(i).label);
    dropped_.erase(it);
  }

  Value for_backward(Value v, const Label& label) {
    if (!v.valid() || kept_[static_cast<size_t>(v.node)]) return rewriter_(v);
    if (const auto it = clones_.find(v.node); it != clones_.end()) return {it->second, v.out};
    Node clone = graph_.node(v.node);
    for (Value& in : clone.in) in = for_backward(in, label);
    clone.label.phase = Phase::kBackward;
    clone.is_clone = true;
    const int32_t id = rewriter_.to.append(std::move(clone));
    clones_[v.node] = id;
    return {id, v.out};
  }

  const Graph& graph_;
  std::vector<bool> kept_;
  Rewriter rewriter_;
  std::map<int32_t, int32_t> clones_;
  std::map<std::pair<int32_t, int32_t>, std::vector<int32_t>> dropped_;  // by stage, module
};

}  // namespace

Graph recompute(const Graph& graph, const RecomputePolicy& policy) {
  TOK_CHECK(policy.every_nth_block >= 1, "every {}th block", policy.every_nth_block);
  const auto is_dropped = [&](int32_t i) { return graph.node(i).is_dropped; };
  bool any = policy.mode != RecomputePolicy::Mode::kNone;
  for (int32_t i = 0; i < graph.size() && !any; ++i) any = is_dropped(i);
  if (!any) return graph;
  return Recomputer(graph, policy).run();
}

Graph split_weight_gradients(const Graph& graph) {
  // Whether something else reads a node's outputs; destinations of sums are no reads.
  std::vector<bool> is_read(static_cast<size_t>(graph.size()), false);
  std::vector<bool> is_apart(static_cast<size_t>(graph.size()), false);
  for (int32_t i = graph.size(); i-- > 0;) {
    const Node& node = graph.node(i);
    if (node.is_leaf()) continue;
    // Communication of gradient storage, as opposed to that of values.
    const bool reduces = node.rules->is_communication && !node.is_clone && !node.in.empty() &&
                         node.label.phase == Phase::kBackward &&
                         std::all_of(node.in.begin(), node.in.end(),
                                     [&](Value v) { return graph.producer(v).is_leaf(); });
    is_apart[static_cast<size_t>(i)] =
        node.label.phase == Phase::kBackward && !node.rules->has_side_effect &&
        (reduces || (acts(node) && !is_read[static_cast<size_t>(i)]));
    if (reduces && !node.rules->has_side_effect) continue;
    for (const Value v : node.in) {
      if (v.valid()) is_read[static_cast<size_t>(v.node)] = true;
    }
  }
  Graph split = graph;
  for (int32_t i = 0; i < graph.size(); ++i) {
    if (is_apart[static_cast<size_t>(i)])
      split.mutable_node(i).label.phase = Phase::kWeightGradient;
  }
  return split;
}

}  // namespace tokamak
