#include "tokamak/graph/fuse.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "tokamak/graph/rewriter.h"

namespace tokamak {
namespace {

using Readers = std::map<Value, std::vector<int32_t>>;

bool is_view(const Node& node) {
  return !node.is_leaf() && node.rules->is_view;
}

}  // namespace

Value storage_of(const Graph& graph, Value v) {
  while (true) {
    const Node& node = graph.producer(v);
    if (node.is_leaf()) return v;
    if (is_view(node)) {
      v = node.in[0];
      continue;
    }
    if (const auto sum = node.accumulation(v.out)) {
      v = sum->into;
      continue;
    }
    const std::vector<Alias> aliases = node.rules->aliases(node.op.get());
    const auto must = std::find_if(aliases.begin(), aliases.end(),
                                   [&](const Alias& a) { return a.must && a.out == v.out; });
    if (must == aliases.end()) return v;
    v = node.in[must->in];
  }
}

namespace {

// Maps each value to the nodes, in order, that read it directly or through a view, or add into it.
Readers readers_of(const Graph& graph) {
  Readers readers;
  for (int32_t i = graph.size(); i-- > 0;) {
    const Node& node = graph.node(i);
    std::set<int32_t> mine{i};
    if (is_view(node)) {
      const std::vector<int32_t>& of_view = readers[{i, 0}];
      mine.insert(of_view.begin(), of_view.end());
    }
    for_each_use(node, [&](Value v) {
      std::vector<int32_t>& all = readers[v];
      all.insert(all.end(), mine.begin(), mine.end());
    });
  }
  for (auto& [value, all] : readers) {
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
  }
  return readers;
}

// Whether both nodes are on one stream and in one segment, however segments are cut.
bool runs_with(const Node& a, const Node& b) {
  return a.label.phase == b.label.phase && a.label.stage == b.label.stage && a.stream == b.stream &&
         a.when == b.when;
}

// Finds the conflicts that keep nodes from changing places.
class Order {
 public:
  Order(const Graph& graph, const StateLayout& layout) : graph_(graph), layout_(layout) {}

  // Whether node `i` may also run just after the later node `last`.
  bool may_run_after(int32_t i, int32_t last) const {
    for (int32_t j = i + 1; j <= last; ++j) {
      if (!graph_.node(j).is_leaf() && conflict(i, j)) return false;
    }
    return true;
  }

  // Returns node `i` and the nodes that read its results, in order, if they can run just after the
  // later node `last`. Returns nothing where `last` or a node that does not read them would have to
  // wait too, or where `may_wait` is false.
  template <class F>
  std::vector<int32_t> waiting_for(int32_t i, int32_t last, const F& may_wait) const {
    std::vector<int32_t> waiting{i};
    for (int32_t j = i + 1; j <= last; ++j) {
      if (graph_.node(j).is_leaf()) continue;
      const bool waits =
          std::any_of(waiting.begin(), waiting.end(), [&](int32_t k) { return conflict(k, j); });
      if (!waits) continue;
      const std::vector<Value>& in = graph_.node(j).in;
      const bool reads = std::any_of(in.begin(), in.end(), [&](Value v) {
        return std::find(waiting.begin(), waiting.end(), v.node) != waiting.end();
      });
      if (j == last || !reads || !may_wait(j)) return {};
      waiting.push_back(j);
    }
    return waiting;
  }

 private:
  struct Use {
    Value storage;
    bool writes = false;
  };

  std::vector<Use> uses(int32_t i) const {
    const Node& node = graph_.node(i);
    std::vector<Use> all;
    for_each_use(node, [&](Value v) { all.push_back({.storage = storage_of(graph_, v)}); });
    for (int32_t k = 0; k < std::ssize(node.out); ++k)
      all.push_back({.storage = storage_of(graph_, {i, k}), .writes = !is_view(node)});
    return all;
  }

  bool overlap(Value a, Value b) const {
    if (a == b) return true;
    const Node& x = graph_.producer(a);
    const Node& y = graph_.producer(b);
    if (!x.is_leaf() || !y.is_leaf()) return false;
    const int64_t x_begin = layout_[x.state];
    const int64_t y_begin = layout_[y.state];
    return x_begin < y_begin + y.out[0].bytes() && y_begin < x_begin + x.out[0].bytes();
  }

  bool conflict(int32_t i, int32_t j) const {
    for (const Use& a : uses(i)) {
      for (const Use& b : uses(j)) {
        if ((a.writes || b.writes) && overlap(a.storage, b.storage)) return true;
      }
    }
    return graph_.node(i).rules->has_side_effect && graph_.node(j).rules->has_side_effect;
  }

  const Graph& graph_;
  const StateLayout& layout_;
};

}  // namespace

namespace {

// Finds the values that gradient nodes can recompute, then writes the graph in its new order.
class Emitter {
 public:
  Emitter(const Graph& graph, const StateLayout& layout)
      : graph_(graph), order_(graph, layout), readers_(readers_of(graph)), rewriter_(graph) {}

  Graph run() {
    for (int32_t i = 0; i < graph_.size(); ++i) find(i);
    if (emitting_.empty()) return graph_;
    for (int32_t i = 0; i < graph_.size(); ++i) {
      if (const auto later = runs_after_.find(i); later != runs_after_.end()) {
        waiting_[later->second].push_back(i);
      } else {
        put(i);
      }
      for (const int32_t user : waiting_[i]) put(user);
    }
    return rewriter_.finish();
  }

  std::vector<bool> emitted() {
    for (int32_t i = 0; i < graph_.size(); ++i) find(i);
    std::vector<bool> emitted(graph_.size(), false);
    for (const auto& [use, again] : made_again_) emitted[use.second.node] = true;
    return emitted;
  }

 private:
  void find(int32_t gradient) {
    const Node& node = graph_.node(gradient);
    if (node.is_leaf() || node.label.phase != Phase::kBackward || node.in.empty()) return;
    for (const int32_t forward : readers_[node.in[0]]) {
      const Node& f = graph_.node(forward);
      if (forward >= gradient || f.is_leaf() || f.out.size() != 1 || f.in.size() > node.in.size() ||
          !std::equal(f.in.begin(), f.in.end(), node.in.begin(),
                      [&](Value a, Value b) { return is_same(a, b); }))
        continue;
      const auto op = node.rules->emitting(node.op.get(), {.rules = f.rules, .op = f.op});
      if (op && emit({forward, 0}, gradient, *op)) return;
    }
  }

  // Whether one is the other or its recomputation from the same inputs (weights gathered again).
  bool is_same(Value a, Value b) const {
    if (a == b) return true;
    const Node& x = graph_.producer(a);
    const Node& y = graph_.producer(b);
    if (x.is_leaf() || y.is_leaf()) return x.state == y.state && x.is_leaf() == y.is_leaf();
    return x.op == y.op && a.out == b.out && x.accumulations.empty() && y.accumulations.empty() &&
           x.in.size() == y.in.size() &&
           std::equal(x.in.begin(), x.in.end(), y.in.begin(),
                      [&](Value v, Value w) { return is_same(v, w); });
  }

  // Lets `gradient` emit `value` if all backward nodes that read it can wait for `gradient`.
  bool emit(Value value, int32_t gradient, const AnyOp& op) {
    const Node& node = graph_.node(gradient);
    const auto may_wait = [&](int32_t i) {
      const Node& user = graph_.node(i);
      return !user.rules->is_communication && !user.rules->has_side_effect &&
             user.stream == node.stream && user.when == node.when &&
             user.label.stage == node.label.stage && user.label.phase != Phase::kUpdate;
    };
    std::vector<int32_t> users;
    std::set<int32_t> waiting;
    for (const int32_t i : readers_[value]) {
      const Node& user = graph_.node(i);
      if (user.label.phase == Phase::kForward) continue;
      const bool reads = std::find(user.in.begin(), user.in.end(), value) != user.in.end();
      if (!reads || is_view(user) || !may_wait(i)) return false;
      users.push_back(i);
      if (i > gradient) continue;
      const std::vector<int32_t> with = order_.waiting_for(i, gradient, may_wait);
      if (with.empty()) return false;
      waiting.insert(with.begin(), with.end());
    }
    if (users.empty()) return false;
    emitting_[gradient] = op;
    for (const int32_t i : users)
      made_again_[{i, value}] = {gradient, static_cast<int32_t>(node.out.size())};
    for (const int32_t i : waiting) {
      int32_t& last = runs_after_[i];
      last = std::max(last, gradient);
    }
    return true;
  }

  void put(int32_t i) {
    if (graph_.node(i).is_leaf()) {
      rewriter_.copy(i);
      return;
    }
    Node node = graph_.node(i);
    for (Value& v : node.in) {
      if (const auto again = made_again_.find({i, v}); again != made_again_.end())
        v = again->second;
    }
    if (const auto op = emitting_.find(i); op != emitting_.end()) {
      Types in;
      for (const Value v : node.in) in.push_back(graph_.type(v));
      node.rules = op->second.rules;
      node.op = op->second.op;
      node.out = node.rules->infer(node.op.get(), in);
    }
    rewriter_.put(i, rewriter_.moved(node));
  }

  const Graph& graph_;
  const Order order_;
  Readers readers_;
  Rewriter rewriter_;
  std::map<int32_t, AnyOp> emitting_;                      // by gradient node
  std::map<std::pair<int32_t, Value>, Value> made_again_;  // by user and what it read
  std::map<int32_t, int32_t> runs_after_;                  // by user: gradient node
  std::map<int32_t, std::vector<int32_t>> waiting_;        // by gradient node
};

}  // namespace

Graph emit_on_backward(const Graph& graph, const StateLayout& layout) {
  return Emitter(graph, layout).run();
}

std::vector<bool> emitted_on_backward(const Graph& graph, const StateLayout& layout) {
  return Emitter(graph, layout).emitted();
}

namespace {

class SumAccumulator {
 public:
  explicit SumAccumulator(const Graph& graph) : graph_(graph), readers_(readers_of(graph)) {}

  Graph run() {
    for (int32_t i = 0; i < graph_.size(); ++i) find(i);
    if (become_.empty()) return graph_;
    Rewriter rewriter(graph_);
    for (int32_t i = 0; i < graph_.size(); ++i) {
      const auto sum = become_.find({i, 0});
      if (sum != become_.end()) {
        rewriter.map({i, 0}, rewriter(sum->second));
        continue;
      }
      rewriter.copy(i);
      for (int32_t k = 0; k < std::ssize(graph_.node(i).out); ++k) {
        if (const auto into = into_.find({i, k}); into != into_.end()) {
          rewriter.to.accumulate(rewriter({i, k}), rewriter(into->second), AccumulateMode::kAlways);
        }
      }
    }
    return rewriter.finish();
  }

 private:
  void find(int32_t i) {
    const Node& node = graph_.node(i);
    if (node.is_leaf() || !node.rules->is_sum || node.in.size() != 2) return;
    Value earlier = now(node.in[0]);
    Value later = now(node.in[1]);
    Value read = node.in[0];
    if (later.node < earlier.node) {
      std::swap(earlier, later);
      read = node.in[1];
    }
    if (!can_add(later, i) || !can_take(earlier, read, later.node, i)) return;
    into_[later] = earlier;
    become_[{i, 0}] = later;
  }

  Value now(Value v) const {
    const auto it = become_.find(v);
    return it == become_.end() ? v : it->second;
  }

  bool is_root(Value v) const {
    return std::find(graph_.roots.begin(), graph_.roots.end(), v) != graph_.roots.end();
  }

  bool can_add(Value v, int32_t sum) {
    return graph_.can_accumulate(v) && !into_.contains(v) && !is_root(v) &&
           runs_with(graph_.producer(v), graph_.node(sum)) &&
           readers_[v] == std::vector<int32_t>{sum};
  }

  // Whether node `adder` may write over `v`, which the sum reads as `read`.
  bool can_take(Value v, Value read, int32_t adder, int32_t sum) {
    const Node& node = graph_.producer(v);
    const bool receives = !node.is_leaf() && node.rules->is_communication;
    if (v.node >= adder || node.is_leaf() || is_view(node) || receives || is_root(read) ||
        storage_of(graph_, v) != v || !runs_with(node, graph_.node(adder)))
      return false;
    return std::all_of(readers_[read].begin(), readers_[read].end(), [&](int32_t reader) {
      return reader == sum ||
             (reader < adder && (runs_with(graph_.node(reader), node) || has_ended(reader, adder)));
    });
  }

  // Whether node `by` runs after another node of its stream that has waited for communication `i`.
  bool has_ended(int32_t i, int32_t by) {
    const Node& communication = graph_.node(i);
    if (!communication.rules->is_communication || communication.out.empty()) return false;
    const std::vector<int32_t>& readers = readers_[{i, 0}];
    return std::any_of(readers.begin(), readers.end(), [&](int32_t reader) {
      return reader < by && !is_view(graph_.node(reader)) &&
             runs_with(graph_.node(reader), graph_.node(by));
    });
  }

  const Graph& graph_;
  Readers readers_;
  std::map<Value, Value> become_;  // by sum
  std::map<Value, Value> into_;    // by adding value
};

}  // namespace

Graph accumulate_sums(const Graph& graph) {
  return SumAccumulator(graph).run();
}

Graph fuse_producers(const Graph& graph, const StateLayout& layout) {
  const Order order(graph, layout);
  const auto fused = [&](int32_t i) -> std::optional<AnyOp> {
    const Node& node = graph.node(i);
    if (node.is_leaf() || node.in.empty() || node.in[0].out != 0) return std::nullopt;
    const Node& producer = graph.producer(node.in[0]);
    if (producer.is_leaf() || !runs_with(producer, node) || producer.is_clone != node.is_clone ||
        producer.is_dropped || node.is_dropped || !producer.accumulations.empty() ||
        !node.accumulations.empty())
      return std::nullopt;
    return node.rules->after(node.op.get(), {.rules = producer.rules, .op = producer.op});
  };
  std::map<int32_t, std::pair<int32_t, AnyOp>> fused_at;  // by node: its producer
  std::set<int32_t> is_gone;
  for (int32_t i = 0; i < graph.size(); ++i) {
    const auto op = fused(i);
    if (!op) continue;
    const int32_t producer = graph.node(i).in[0].node;
    if (is_gone.contains(producer) || fused_at.contains(producer) ||
        !order.may_run_after(producer, i - 1))
      continue;
    is_gone.insert(producer);
    fused_at[i] = {producer, *op};
  }
  if (fused_at.empty()) return graph;

  Rewriter rewriter(graph);
  for (int32_t i = 0; i < graph.size(); ++i) {
    if (is_gone.contains(i)) continue;
    const auto at = fused_at.find(i);
    if (at == fused_at.end()) {
      rewriter.copy(i);
      continue;
    }
    const auto& [first, op] = at->second;
    const Node& producer = graph.node(first);
    Node node = graph.node(i);
    node.rules = op.rules;
    node.op = op.op;
    node.in = producer.in;
    node.in.insert(node.in.end(), graph.node(i).in.begin() + 1, graph.node(i).in.end());
    node.out = producer.out;
    node.out.insert(node.out.end(), graph.node(i).out.begin(), graph.node(i).out.end());
    const int32_t id = rewriter.to.append(rewriter.moved(node));
    const auto num_first = static_cast<int32_t>(producer.out.size());
    for (int32_t k = 0; k < std::ssize(graph.node(i).out); ++k)
      rewriter.map({i, k}, {id, num_first + k});
    for (int32_t k = 0; k < num_first; ++k) rewriter.map({first, k}, {id, k});
  }
  return rewriter.finish();
}

}  // namespace tokamak
