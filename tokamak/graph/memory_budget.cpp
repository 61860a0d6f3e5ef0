#include "tokamak/graph/memory_budget.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "tokamak/graph/fuse.h"

namespace tokamak {
namespace {

// Returns the picoseconds that a node takes. Whole numbers have one sum in any order, so ranks that
// find the nodes of a block in unlike orders still agree on which values cost the same.
int64_t time_again(const Graph& graph, const Node& node, const Rates& rates) {
  if (node.rules->is_view) return 0;
  const Cost cost = node_cost(graph, node);
  const double flops_per_second = rates.flops * (size_of(cost.dtype) == 1 ? 2.0 : 1.0);
  const double compute = std::max(cost.flops / flops_per_second,
                                  (cost.bytes_read + cost.bytes_written) / rates.bytes_per_s);
  const double seconds =
      rates.launch_s + std::max(compute, cost.bytes_sent / rates.link_bytes_per_s);
  return std::llround(1e12 * seconds);
}

// Chooses what one block keeps.
class BlockChoice {
 public:
  BlockChoice(const Graph& graph, const KeepBounds& bounds, const Rates& rates,
              std::vector<int32_t> nodes, std::vector<Value> read_by_backward)
      : graph_(graph),
        bounds_(bounds),
        rates_(rates),
        nodes_(std::move(nodes)),
        reads_(std::move(read_by_backward)) {}

  // Sets `kept` for the block's nodes. REQUIRES: they are kept as in `bounds.most`.
  void choose(double budget, std::vector<bool>& kept) const {
    Choice all{.kept = kept, .outcome = outcome(kept)};
    Choice best{.kept = kept};
    for (const int32_t i : nodes_) best.kept[i] = bounds_.least[i];
    best.outcome = outcome(best.kept);
    const double allowed =
        all.outcome.bytes - (1.0 - budget) * (all.outcome.bytes - best.outcome.bytes);
    if (all.outcome.bytes <= allowed) return;
    for (Choice now = std::move(all); give_up_more(allowed, now, best);) {
    }
    while (keep_one_more(allowed, best)) {
    }
    kept = with_emitted(best.kept);
  }

 private:
  struct Outcome {
    double bytes = 0.0;  // saved for the backward
    int64_t time = 0;    // to compute the rest again
  };

  struct Choice {
    std::vector<bool> kept;
    Outcome outcome;
  };

  using Nodes = std::vector<int32_t>;

  bool is_in_block(int32_t i) const { return std::binary_search(nodes_.begin(), nodes_.end(), i); }

  // Returns `kept` without the values that gradient nodes emit from an input that is recomputed:
  // a gradient node finds what it can emit among the readers of that input's clone.
  std::vector<bool> with_emitted(std::vector<bool> kept) const {
    for (const int32_t i : nodes_) {
      if (!kept[i] || !bounds_.emitted[i] || !may_change(i)) continue;
      const int32_t input = graph_.node(i).in[0].node;
      kept[i] = kept[input] || !is_in_block(input) || !may_change(input);
    }
    return kept;
  }

  Outcome outcome(const std::vector<bool>& wanted_kept) const {
    const std::vector<bool> kept = with_emitted(wanted_kept);
    Outcome out;
    std::set<Value> saved;
    std::set<int32_t> again;
    std::vector<Value> wanted = reads_;
    while (!wanted.empty()) {
      const Value v = wanted.back();
      wanted.pop_back();
      if (!v.valid() || !is_in_block(v.node)) continue;
      if (kept[v.node]) {
        const Value storage = storage_of(graph_, v);
        if (is_in_block(storage.node) && saved.insert(storage).second)
          out.bytes += static_cast<double>(graph_.type(storage).bytes());
      } else if (again.insert(v.node).second) {
        const Node& node = graph_.node(v.node);
        out.time += time_again(graph_, node, rates_);
        wanted.insert(wanted.end(), node.in.begin(), node.in.end());
      }
    }
    return out;
  }

  bool may_change(int32_t i) const { return bounds_.most[i] && !bounds_.least[i]; }

  // Returns the sets of nodes that are worth giving up together: each node, each with those that it
  // reads, and each with all its inputs, so that its inputs are not saved in its place.
  std::vector<Nodes> sets_of(const std::vector<bool>& kept) const {
    std::vector<Nodes> sets;
    for (const int32_t i : nodes_) {
      if (!kept[i] || !may_change(i)) continue;
      sets.push_back({i});
      Nodes with = {i};
      for (size_t k = 0; k < with.size(); ++k) {
        for (const Value v : graph_.node(with[k]).in) {
          const bool joins = v.valid() && is_in_block(v.node) && kept[v.node] &&
                             may_change(v.node) &&
                             std::find(with.begin(), with.end(), v.node) == with.end();
          if (joins) with.push_back(v.node);
        }
        if (k == 0 && with.size() > 1) sets.push_back(with);
      }
      if (with.size() > sets.back().size()) sets.push_back(std::move(with));
    }
    return sets;
  }

  // Sets `best` to the fastest allowed choice that giving up one more set makes of `now`, if that
  // is faster than `best`. Then gives up, in `now`, the set that costs the least time per byte
  // among those that do not free enough; returns false if there is none.
  bool give_up_more(double allowed, Choice& now, Choice& best) const {
    Choice next;
    double least_price = 0.0;
    for (const Nodes& set : sets_of(now.kept)) {
      Choice then{.kept = now.kept};
      for (const int32_t i : set) then.kept[i] = false;
      then.outcome = outcome(then.kept);
      const double freed = now.outcome.bytes - then.outcome.bytes;
      if (freed <= 0.0) continue;
      const double price = static_cast<double>(then.outcome.time - now.outcome.time) / freed;
      if (then.outcome.bytes <= allowed) {
        if (then.outcome.time < best.outcome.time) best = std::move(then);
      } else if (next.kept.empty() || price < least_price) {
        next = std::move(then);
        least_price = price;
      }
    }
    if (next.kept.empty()) return false;
    now = std::move(next);
    return true;
  }

  // Keeps the node that saves most time among those that still fit; returns false if there is none.
  bool keep_one_more(double allowed, Choice& best) const {
    Choice next = best;
    for (const int32_t i : nodes_) {
      if (best.kept[i] || !may_change(i)) continue;
      Choice then{.kept = best.kept};
      then.kept[i] = true;
      then.outcome = outcome(then.kept);
      if (then.outcome.bytes <= allowed && then.outcome.time < next.outcome.time)
        next = std::move(then);
    }
    if (next.outcome.time >= best.outcome.time) return false;
    best = std::move(next);
    return true;
  }

  const Graph& graph_;
  const KeepBounds& bounds_;
  const Rates& rates_;
  const Nodes nodes_;  // in order
  const std::vector<Value> reads_;
};

}  // namespace

std::vector<bool> kept_within_budget(const Graph& graph, const KeepBounds& bounds, double budget,
                                     const Rates& rates) {
  std::map<int, std::vector<int32_t>> blocks;
  std::map<int, std::set<Value>> reads;
  for (int32_t i = 0; i < graph.size(); ++i) {
    const Node& node = graph.node(i);
    if (node.is_leaf()) continue;
    if (node.label.phase == Phase::kForward) {
      if (node.label.block >= 0) blocks[node.label.block].push_back(i);
      continue;
    }
    for_each_use(node, [&](Value v) {
      const Node& made_by = graph.producer(v);
      const bool is_activation = !made_by.is_leaf() && made_by.label.block >= 0 &&
                                 made_by.label.phase == Phase::kForward && !bounds.emitted[v.node];
      if (is_activation) reads[made_by.label.block].insert(v);
    });
  }
  std::vector<bool> kept = bounds.most;
  for (auto& [block, nodes] : blocks) {
    const std::set<Value>& values = reads[block];
    BlockChoice(graph, bounds, rates, std::move(nodes), {values.begin(), values.end()})
        .choose(budget, kept);
  }
  return kept;
}

}  // namespace tokamak
