// The one static training graph: SSA over global shapes.
//
// A node applies an op to values and returns values, and every node stands before its uses. Leaves
// read named State (graph/state.h). Storage is written only by donation: an op whose rules declare
// a `must` alias consumes that input's storage, so an update of State is an op whose output must
// alias a State leaf, and no later node may read the old value. An output that *accumulates* goes
// to another value's storage: it overwrites (kNever), overwrites in the first microbatch of a step
// and adds in the others (kFirstMicrobatch), or adds (kAlways). Where that value is a view, only
// its bytes are written. Labels say which block, stage and phase a node belongs to.
//
// place_values.h checks that no node reads bytes of a value that an earlier node has overwritten. A
// State and its windows are different States to this check, so a leaf over common bytes reads what
// earlier nodes have left there.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tokamak/graph/op.h"
#include "tokamak/graph/state.h"

namespace tokamak {

/// Output `out` of node `node`. It is invalid by default (no gradient, optional input).
struct Value {
  int32_t node = -1;
  int32_t out = 0;

  auto operator<=>(const Value&) const = default;

  bool valid() const { return node >= 0; }
};

/// When a node runs within an optimizer step.
enum class Phase : uint8_t {
  kUnshard,         ///< once per step, before the first microbatch: compute copies of parameters
  kForward,         ///< each microbatch
  kBackward,        ///< each microbatch
  kWeightGradient,  ///< each microbatch: what no other backward node needs, where a schedule runs
                    ///< it separately
  kUpdate,          ///< once per step, after the last microbatch
};

std::string_view name_of(Phase phase);

/// Identifies what a node of a rank's graph was made from, by numbers that are equal on all ranks.
/// check_ranks uses it to tell collectives of equal types apart. Nodes of the global graph have no
/// origin.
struct Origin {
  int32_t value = -1;  ///< node of the global graph
  int32_t state = -1;  ///< State of the global graph, where no node of it is the origin
  int32_t part = 0;    ///< which of several collectives of one origin

  bool operator==(const Origin&) const = default;
};

struct Label {
  Phase phase = Phase::kForward;
  int32_t block = -1;  ///< transformer block; -1 outside blocks
  int32_t module =
      0;  ///< place in the model: 0 embedding, 1 + i block i, then final norm, then head
  int32_t stage = 0;  ///< pipeline stage, set by distribute from the module
  Origin origin;

  /// Whether two nodes have the same place; their origins may differ.
  bool operator==(const Label& other) const {
    return phase == other.phase && block == other.block && module == other.module &&
           stage == other.stage;
  }
};

enum class AccumulateMode : uint8_t {
  kNever,            ///< overwrites
  kFirstMicrobatch,  ///< overwrites in the first microbatch, adds in the others
  kAlways,
};

/// The microbatches in which a node of a per-microbatch phase runs.
enum class When : uint8_t { kEvery, kLastMicrobatch };

/// Output `out` adds into the storage of `into`.
struct Accumulation {
  int out = 0;
  Value into;
  AccumulateMode mode = AccumulateMode::kFirstMicrobatch;
};

struct Node {
  const OpRules* rules = nullptr;  ///< null for a leaf
  std::shared_ptr<const void> op;
  std::vector<Value> in;
  Types out;
  Label label;
  StateId state;  ///< of a leaf
  std::vector<Accumulation> accumulations;
  bool is_clone = false;  ///< made by recompute
  /// A forward node that the backward recomputes, never keeps (resharded weights, gathered inputs).
  bool is_dropped = false;
  int32_t composite = 0;  ///< nodes that one composite expanded into share a number; others have 0
  When when = When::kEvery;
  int stream = 0;  ///< 0 computes; others carry communication that may run concurrently

  bool is_leaf() const { return rules == nullptr; }

  std::optional<Accumulation> accumulation(int output) const;

  template <class T>
  const T* as() const {
    return rules == &kRules<T> ? static_cast<const T*>(op.get()) : nullptr;
  }
};

/// Calls `use` for all values that a node reads, accumulators included.
template <class F>
void for_each_use(const Node& node, F&& use) {
  for (const Value v : node.in) {
    if (v.valid()) use(v);
  }
  for (const Accumulation& a : node.accumulations) use(a.into);
}

/// A copyable graph, which owns its nodes. The State table it was made over must outlive it.
class Graph {
 public:
  explicit Graph(StateTable& states) : states_(&states) {}

  /// Applies `op`; throws Error naming the op if the types do not fit. An invalid Value stands for
  /// an absent optional input; `infer` does not get it, so optional inputs come last.
  template <Op T>
  std::vector<Value> add(T op,
                         std::vector<Value> in) {  // NOLINT(performance-unnecessary-value-param)
    return add_node(&kRules<T>, std::make_shared<const T>(std::move(op)), std::move(in));
  }

  /// Applies an op with one output.
  template <Op T>
  Value apply(T op, std::vector<Value> in) {
    return add(std::move(op), std::move(in)).front();
  }

  std::vector<Value> add_node(const OpRules* rules, std::shared_ptr<const void> op,
                              std::vector<Value> in);

  /// Appends `node` as it is (types, label, accumulations), for passes that copy nodes.
  int32_t append(Node node);

  /// Returns the value of State at entry, which is one leaf per State.
  Value read(StateId state);

  /// Whether the producer of `value` can add into a destination; ops/optimizer/accumulate.h handles
  /// all other values.
  bool can_accumulate(Value value) const;

  /// Makes `value` accumulate into `into`. REQUIRES: can_accumulate(value), the types are equal,
  /// and nothing uses `value` yet.
  void accumulate(Value value, Value into, AccumulateMode mode);

  const TensorType& type(Value v) const { return nodes_[index(v.node)].out[index(v.out)]; }

  const Node& node(int32_t i) const { return nodes_[index(i)]; }

  const Node& producer(Value v) const { return nodes_[index(v.node)]; }

  Node& mutable_node(int32_t i) { return nodes_[index(i)]; }

  int32_t size() const { return static_cast<int32_t>(nodes_.size()); }

  StateTable& states() const { return *states_; }

  /// Values that must survive although no node uses them. They are for tests, since results that
  /// the host reads are State.
  std::vector<Value> roots;

  /// The label that new nodes get.
  Label label;

 private:
  static size_t index(int32_t i) { return static_cast<size_t>(i); }

  StateTable* states_;
  std::deque<Node> nodes_;
  std::vector<int32_t> leaves_;  // by State; -1 = none yet
};

/// Sets the graph's label for a scope.
class LabelScope {
 public:
  LabelScope(Graph& graph, Label label)
      : graph_(graph), saved_(std::exchange(graph.label, label)) {}

  LabelScope(const LabelScope&) = delete;
  LabelScope& operator=(const LabelScope&) = delete;

  ~LabelScope() { graph_.label = saved_; }

 private:
  Graph& graph_;
  Label saved_;
};

/// Returns what the node costs on its inputs. REQUIRES: it is no leaf.
Cost node_cost(const Graph& graph, const Node& node);

/// Puts the communication among the nodes from `first` on on `stream`.
void put_communication_on(Graph& graph, int32_t first, int stream);

}  // namespace tokamak
