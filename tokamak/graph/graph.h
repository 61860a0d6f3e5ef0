// The one static training graph: SSA over global shapes.
//
// Semantics. A node applies an op to values and yields values; nodes stand in an order that
// respects uses. Leaves read named State (graph/state.h). Nothing is written except by donation: an
// op whose rules declare a `must` alias consumes that input's storage, so an update of State is an
// op whose output must alias a State leaf, and no later node may read the old value. An output that
// *accumulates* goes to another value's storage: it overwrites (kNever), overwrites in the first
// microbatch of a step and adds in the others (kFirstMicrobatch), or adds (kAlways). Where that
// value is a view, only its bytes are written. Labels say which block, stage and phase a node
// belongs to.
//
// Checked (place_values.h): no node reads bytes of a value that an earlier node has written over. A
// State and its windows are different States to this check: what a leaf over common bytes reads is
// what the nodes before it have left there.
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

/// Output `out` of node `node`; invalid by default (no gradient, optional input).
struct Value {
  int32_t node = -1;
  int32_t out = 0;

  auto operator<=>(const Value&) const = default;

  bool valid() const { return node >= 0; }
};

/// When a node runs within an optimizer step.
enum class Phase : uint8_t {
  kUnshard,         ///< once a step, before the first microbatch: compute copies of parameters
  kForward,         ///< each microbatch
  kBackward,        ///< each microbatch
  kWeightGradient,  ///< each microbatch: what no other backward node needs, where a schedule runs
                    ///< it apart
  kUpdate,          ///< once a step, after the last microbatch
};

std::string_view name_of(Phase phase);

struct Label {
  Phase phase = Phase::kForward;
  int32_t block = -1;  ///< transformer block; -1 outside blocks
  int32_t module =
      0;  ///< place in the model: 0 embedding, 1 + i block i, then final norm, then head
  int32_t stage = 0;  ///< pipeline stage, set by distribute from the module
  bool operator==(const Label&) const = default;
};

enum class AccumulateMode : uint8_t {
  kNever,            ///< overwrites
  kFirstMicrobatch,  ///< overwrites in the first microbatch, adds in the others
  kAlways,
};

/// In which microbatches a node of a per-microbatch phase runs.
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
  /// Forward: never kept for the backward, made again there (resharded weights, gathered inputs).
  bool is_dropped = false;
  When when = When::kEvery;
  int stream = 0;  ///< 0 computes; others carry communication that may run beside it

  bool is_leaf() const { return rules == nullptr; }

  std::optional<Accumulation> accumulation(int output) const;

  template <class T>
  const T* as() const {
    return rules == &kRules<T> ? static_cast<const T*>(op.get()) : nullptr;
  }
};

/// All values a node reads, accumulators included.
template <class F>
void for_each_use(const Node& node, F&& use) {
  for (const Value v : node.in) {
    if (v.valid()) use(v);
  }
  for (const Accumulation& a : node.accumulations) use(a.into);
}

/// Owns its nodes; refers to the State table it was made over, which must outlive it. Copyable.
class Graph {
 public:
  explicit Graph(StateTable& states) : states_(&states) {}

  /// Applies `op`; throws Error naming the op if the types do not fit. An invalid Value stands for
  /// an absent optional input and reaches `infer` as nothing: optional inputs come last.
  template <Op T>
  std::vector<Value> add(T op,
                         std::vector<Value> in) {  // NOLINT(performance-unnecessary-value-param)
    return add_node(&kRules<T>, std::make_shared<const T>(std::move(op)), std::move(in));
  }

  /// The same for an op with one output.
  template <Op T>
  Value apply(T op, std::vector<Value> in) {
    return add(std::move(op), std::move(in)).front();
  }

  std::vector<Value> add_node(const OpRules* rules, std::shared_ptr<const void> op,
                              std::vector<Value> in);

  /// Copies `node` as it is (types, label, accumulations), with other inputs. For passes.
  int32_t append(Node node);

  /// The value of State at entry; one leaf for each State.
  Value read(StateId state);

  /// Whether the producer of `value` can add into a destination; ops/optimizer/accumulate.h has the
  /// way for all others.
  bool can_accumulate(Value value) const;

  /// From now on `value` is what `into` becomes. REQUIRES: can_accumulate(value), equal types, no
  /// use of `value` yet.
  void accumulate(Value value, Value into, AccumulateMode mode);

  const TensorType& type(Value v) const { return nodes_[index(v.node)].out[index(v.out)]; }

  const Node& node(int32_t i) const { return nodes_[index(i)]; }

  const Node& producer(Value v) const { return nodes_[index(v.node)]; }

  Node& mutable_node(int32_t i) { return nodes_[index(i)]; }

  int32_t size() const { return static_cast<int32_t>(nodes_.size()); }

  StateTable& states() const { return *states_; }

  /// Values that must survive although no node uses them (results the host reads are State; this is
  /// for tests).
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

}  // namespace tokamak
