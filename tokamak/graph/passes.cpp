#include "tokamak/graph/passes.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "tokamak/core/error.h"
#include "tokamak/graph/fuse.h"
#include "tokamak/graph/memory_budget.h"
#include "tokamak/graph/rewriter.h"

namespace tokamak {
namespace {

// Whether the node writes State or communicates with another rank.
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
  int32_t num_composites = 0;
  for (int32_t i = 0; i < graph.size(); ++i)
    num_composites = std::max(num_composites, graph.node(i).composite);
  for (int32_t i = 0; i < graph.size(); ++i) {
    const Node& node = graph.node(i);
    if (node.is_leaf() || !node.rules->is_composite) {
      rewriter.copy(i);
      continue;
    }
    const LabelScope scope(rewriter.to, node.label);
    const int32_t first = rewriter.to.size();
    const std::vector<Value> out =
        node.rules->expand(node.op.get(), rewriter.to, rewriter.moved(node));
    ++num_composites;
    int32_t num_collectives = 0;
    for (int32_t k = first; k < rewriter.to.size(); ++k) {
      Node& made = rewriter.to.mutable_node(k);
      made.composite = num_composites;
      if (!made.is_leaf() && made.rules->is_communication)
        made.label.origin.part = num_collectives++;
    }
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
  std::vector<bool> live(graph.size(), false);
  for (const Value v : graph.roots) live[v.node] = true;
  for (int32_t i = graph.size(); i-- > 0;) {
    const Node& node = graph.node(i);
    if (acts(node)) live[i] = true;
    if (!live[i]) continue;
    for_each_use(node, [&](Value v) { live[v.node] = true; });
  }
  Rewriter rewriter(graph);
  for (int32_t i = 0; i < graph.size(); ++i) {
    if (live[i]) rewriter.copy(i);
  }
  return rewriter.finish();
}

namespace {

using Mode = RecomputePolicy::Mode;

// Decides for each node whether its outputs are kept for the backward, by a rule for each op; all
// are kept if there is a budget.
std::vector<bool> kept_by_rule(const Graph& graph, const RecomputePolicy& policy) {
  std::vector<bool> kept(graph.size());
  for (int32_t i = 0; i < graph.size(); ++i) kept[i] = !graph.node(i).is_dropped;
  std::map<std::pair<int32_t, std::string_view>, int> seen;
  for (int32_t i = 0; i < graph.size(); ++i) {
    const Node& node = graph.node(i);
    const bool in_block = node.label.phase == Phase::kForward && node.label.block >= 0;
    if (node.is_leaf() || node.is_dropped || !in_block || acts(node) || node.rules->is_kept)
      continue;
    bool keep = policy.mode == Mode::kNone || policy.mode == Mode::kMemoryBudget;
    if (policy.mode == Mode::kSelectiveLayers) {
      keep = (node.label.block + 1) % policy.every_nth_block != 0;
    } else if (policy.mode == Mode::kSelectiveOps) {
      keep = policy.saved_ops.contains(node.rules->name);
      if (policy.halved_ops.contains(node.rules->name)) {
        keep = seen[{node.label.block, node.rules->name}]++ % 2 == 0;
      }
    }
    kept[i] = keep;
  }
  // A value that the next block (or a node after the blocks) reads is a block's input, always kept.
  for (int32_t i = 0; i < graph.size(); ++i) {
    const Node& user = graph.node(i);
    if (user.label.phase != Phase::kForward) continue;
    for_each_use(user, [&](Value v) {
      if (graph.producer(v).label.block != user.label.block) kept[v.node] = true;
    });
  }
  return kept;
}

// Keeps the results of composites that communicate. The members of a group may expand one into
// different nodes, for example if each attends to its own part of a sequence. Choices by cost among
// these nodes would differ between members, and so would the collectives that run again.
void keep_results_of_communication(const Graph& graph, std::vector<bool>& kept) {
  std::set<int32_t> communicating;
  for (int32_t i = 0; i < graph.size(); ++i) {
    const Node& node = graph.node(i);
    if (node.composite > 0 && !node.is_leaf() && node.rules->is_communication)
      communicating.insert(node.composite);
  }
  for (int32_t i = 0; i < graph.size(); ++i) {
    const Node& user = graph.node(i);
    for_each_use(user, [&](Value v) {
      const Node& made_by = graph.producer(v);
      if (made_by.composite != user.composite && made_by.label.phase == Phase::kForward &&
          communicating.contains(made_by.composite))
        kept[v.node] = true;
    });
  }
}

std::vector<bool> kept_nodes(const Graph& graph, const StateLayout& layout,
                             const RecomputePolicy& policy, const Rates& rates) {
  std::vector<bool> most = kept_by_rule(graph, policy);
  if (policy.mode != Mode::kMemoryBudget) return most;
  RecomputePolicy without_budget = policy;
  without_budget.mode = Mode::kFull;
  KeepBounds bounds{.least = kept_by_rule(graph, without_budget),
                    .most = std::move(most),
                    .emitted = std::vector<bool>(graph.size(), false)};
  keep_results_of_communication(graph, bounds.least);
  if (policy.emit_on_backward) bounds.emitted = emitted_on_backward(graph, layout);
  return kept_within_budget(graph, bounds, policy.memory_budget, rates);
}

// Clones forward nodes on demand, each at most once. Results of communication are cloned ahead, so
// that they arrive while something else is computed.
class Recomputer {
 public:
  Recomputer(const Graph& graph, std::vector<bool> kept)
      : graph_(graph),
        kept_(std::move(kept)),
        is_of_state_(static_cast<size_t>(graph.size())),
        rewriter_(graph) {
    for (int32_t i = 0; i < graph.size(); ++i) {
      const Node& node = graph.node(i);
      is_of_state_[i] = node.is_leaf() || node.label.phase == Phase::kUnshard ||
                        (node.is_dropped && all_in(node, is_of_state_));
      if (node.is_dropped && is_of_state_[i])
        weights_[{node.label.stage, node.label.module}].push_back(i);
    }
    find_activations();
  }

  Graph run() {
    for (int32_t i = 0; i < graph_.size(); ++i) {
      const Node& node = graph_.node(i);
      if (node.is_leaf() || node.label.phase != Phase::kBackward) {
        rewriter_.copy(i);
        continue;
      }
      // Weights are gathered one module ahead, so that the gather overlaps this module's backward.
      for (const int32_t module : {node.label.module, node.label.module - 1})
        make_weights_again(node.label.stage, module);
      make_activations_again(i);
      if (const std::optional<Value> again = gathered_again(node)) {
        rewriter_.map({i, 0}, *again);
        continue;
      }
      Node copy = node;
      for (Value& v : copy.in) v = for_backward(v);
      for (Accumulation& a : copy.accumulations) a.into = rewriter_(a.into);
      rewriter_.put(i, std::move(copy));
    }
    return rewriter_.finish();
  }

 private:
  // A dropped node that is not made of State alone; the backward reads it from `first_read` on.
  struct Activation {
    int32_t node = 0;
    int32_t first_read = 0;
  };

  using Key = std::pair<const OpRules*, std::vector<Value>>;

  static bool all_in(const Node& node, const std::vector<bool>& set) {
    return std::all_of(node.in.begin(), node.in.end(),
                       [&](Value v) { return !v.valid() || set[v.node]; });
  }

  bool is_activation(int32_t i) const { return graph_.node(i).is_dropped && !is_of_state_[i]; }

  // Finds activations whose clones need no other clones, in the order in which they are read.
  // Others get a twin, if there is one, which is cloned with what they need.
  void find_activations() {
    bool has_any = false;
    for (int32_t i = 0; i < graph_.size() && !has_any; ++i) has_any = is_activation(i);
    if (!has_any) return;
    std::vector<bool> is_at_hand = kept_;
    std::vector<bool> is_found(kept_.size(), false);
    std::map<Key, int32_t> forward;
    for (int32_t i = 0; i < graph_.size(); ++i) {
      const Node& node = graph_.node(i);
      if (is_activation(i)) {
        is_at_hand[i] = all_in(node, is_at_hand);
        const auto twin = forward.find(key_of(node));
        if (twin != forward.end() && !is_at_hand[i] && graph_.node(twin->second).out == node.out)
          twins_[i] = twin->second;
      } else if (!node.is_leaf() && node.label.phase == Phase::kForward && !node.is_dropped) {
        forward.emplace(key_of(node), i);
      }
      if (node.is_leaf() || node.label.phase != Phase::kBackward) continue;
      for (const Value v : node.in) {
        if (!v.valid() || !is_activation(v.node)) continue;
        const auto k = static_cast<size_t>(v.node);
        if (!is_at_hand[k] || is_found[k]) continue;
        is_found[k] = true;
        activations_.push_back({.node = v.node, .first_read = i});
      }
    }
  }

  // Returns equal keys for equal rules on equal inputs, whichever group communicates.
  Key key_of(const Node& node) const {
    std::vector<Value> in = node.in;
    for (Value& v : in) {
      if (const auto it = twins_.find(v.node); it != twins_.end()) v.node = it->second;
    }
    return {node.rules, std::move(in)};
  }

  // Returns what a clone has gathered already of what `node` would gather, as both the attention of
  // a recomputed forward and its gradient gather keys and values.
  std::optional<Value> gathered_again(const Node& node) const {
    if (!node.rules->is_communication || node.in.size() != 1 ||
        node_cost(graph_, node).collective != Cost::Collective::kAllGather ||
        !node.accumulations.empty() || !node.in[0].valid())
      return std::nullopt;
    for (const auto& [i, clone] : clones_) {
      const Node& other = graph_.node(i);
      if (other.rules == node.rules && other.in == node.in && other.out == node.out &&
          other.stream == node.stream && group_id(other) == group_id(node) &&
          other.rules->describe(other.op.get()) == node.rules->describe(node.op.get()))
        return Value{clone, 0};
    }
    return std::nullopt;
  }

  static int group_id(const Node& node) { return node.rules->group(node.op.get()).id; }

  void make_weights_again(int32_t stage, int32_t module) {
    const auto it = weights_.find({stage, module});
    if (it == weights_.end()) return;
    for (const int32_t i : it->second) for_backward({i, 0});
    weights_.erase(it);
  }

  // Makes activations one ahead, concurrently with the first matmul of the block after the previous
  // activation is read. Each begins with that matmul rather than with earlier communication, which
  // uses the same links.
  void make_activations_again(int32_t at) {
    const auto is_due = [&] {
      if (next_ == activations_.size()) return false;
      const Activation& next = activations_[next_];
      return graph_.node(next.node).label.block == graph_.node(at).label.block &&
             (next_ == 0 || activations_[next_ - 1].first_read < at) && is_product(at);
    };
    while (is_due()) for_backward({activations_[next_++].node, 0}, last_input(at));
  }

  // Returns the latest backward value that node `at` reads.
  Value last_input(int32_t at) {
    Value last;
    for (const Value v : graph_.node(at).in) {
      const bool is_later = v.valid() && v.node > last.node;
      if (is_later && graph_.producer(v).label.phase == Phase::kBackward) last = v;
    }
    return last.valid() ? rewriter_(last) : last;
  }

  bool is_product(int32_t i) const {
    const Node& node = graph_.node(i);
    Types in;
    for (const Value v : node.in) {
      if (v.valid()) in.push_back(graph_.type(v));
    }
    return node.rules->cost(node.op.get(), in, node.out).kind == Cost::Kind::kGemm;
  }

  // Returns the clone of `v` for the backward; its communication begins once `after` is available.
  Value for_backward(Value v, Value after = {}) {
    if (!v.valid() || kept_[v.node]) return rewriter_(v);
    if (const auto it = clones_.find(v.node); it != clones_.end()) return {it->second, v.out};
    if (const auto it = twins_.find(v.node); it != twins_.end())
      return for_backward({it->second, v.out});
    for (const int32_t i : missing_for(v.node)) {
      if (clones_.contains(i)) continue;
      Node clone = graph_.node(i);
      for (Value& in : clone.in) in = for_backward(in, after);
      if (after.valid() && clone.rules->is_communication) clone.in.push_back(after);
      clone.label.phase = Phase::kBackward;
      clone.is_clone = true;
      clones_[i] = rewriter_.to.append(std::move(clone));
    }
    return {clones_.at(v.node), v.out};
  }

  // Returns the nodes that must be cloned for node `i`, in the forward's order: ranks of a ring
  // read its parts in other orders, but must go round it again alike.
  std::set<int32_t> missing_for(int32_t i) const {
    std::set<int32_t> missing{i};
    std::vector<int32_t> found{i};
    while (!found.empty()) {
      const Node& node = graph_.node(found.back());
      found.pop_back();
      for (const Value v : node.in) {
        const bool is_at_hand =
            !v.valid() || kept_[v.node] || clones_.contains(v.node) || twins_.contains(v.node);
        if (!is_at_hand && missing.insert(v.node).second) found.push_back(v.node);
      }
    }
    return missing;
  }

  const Graph& graph_;
  std::vector<bool> kept_;
  std::vector<bool> is_of_state_;  // State, made of it once a step, or dropped and made of these
  Rewriter rewriter_;
  std::map<int32_t, int32_t> clones_;
  std::map<std::pair<int32_t, int32_t>, std::vector<int32_t>> weights_;  // by stage, module
  std::map<int32_t, int32_t> twins_;
  std::vector<Activation> activations_;
  size_t next_ = 0;  // of activations_
};

}  // namespace

Graph recompute(const Graph& graph, const StateLayout& layout, const RecomputePolicy& policy,
                const Rates& rates) {
  TOK_CHECK(policy.every_nth_block >= 1, "every {}th block", policy.every_nth_block);
  const auto is_dropped = [&](int32_t i) { return graph.node(i).is_dropped; };
  bool any = policy.mode != Mode::kNone;
  for (int32_t i = 0; i < graph.size() && !any; ++i) any = is_dropped(i);
  if (!any) return graph;
  return Recomputer(graph, kept_nodes(graph, layout, policy, rates)).run();
}

Graph split_weight_gradients(const Graph& graph) {
  // Whether something else reads a node's outputs, as a sum does not read its destination.
  std::vector<bool> is_read(graph.size(), false);
  std::vector<bool> is_read_at_once = is_read;  // by the backward itself
  std::vector<bool> is_apart(graph.size(), false);
  for (int32_t i = graph.size(); i-- > 0;) {
    const Node& node = graph.node(i);
    if (node.is_leaf()) continue;
    // This is communication of gradient storage rather than of values.
    const bool reduces = node.rules->is_communication && !node.is_clone && !node.in.empty() &&
                         node.label.phase == Phase::kBackward &&
                         std::all_of(node.in.begin(), node.in.end(),
                                     [&](Value v) { return graph.producer(v).is_leaf(); });
    // A value that is gathered again only for weight gradients is gathered where they run.
    const bool waits = node.is_clone && node.is_dropped && !is_read_at_once[i];
    is_apart[i] = node.label.phase == Phase::kBackward && !node.rules->has_side_effect &&
                  (reduces || waits || (acts(node) && !is_read[i]));
    if (reduces && !node.rules->has_side_effect) continue;
    for (const Value v : node.in) {
      if (!v.valid()) continue;
      is_read[v.node] = true;
      if (!is_apart[i]) is_read_at_once[v.node] = true;
    }
  }
  Graph split = graph;
  for (int32_t i = 0; i < graph.size(); ++i) {
    if (is_apart[i]) split.mutable_node(i).label.phase = Phase::kWeightGradient;
  }
  return split;
}

}  // namespace tokamak
