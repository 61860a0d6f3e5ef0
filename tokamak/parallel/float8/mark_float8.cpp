#include "tokamak/parallel/float8/mark_float8.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include <fmt/format.h>

#include "tokamak/core/error.h"
#include "tokamak/ops/elementwise/cast.h"
#include "tokamak/ops/matmul/linear.h"
#include "tokamak/ops/vocab/lm_head_loss.h"
#include "tokamak/parallel/float8/float8_table.h"
#include "tokamak/parallel/low_precision.h"

namespace tokamak {
namespace {

template <class T>
void set_float8(Node& node, const std::string& weight) {
  T op = *node.as<T>();
  op.low_precision = true;
  op.module = float8_module(weight);
  node.op = std::make_shared<const T>(std::move(op));
}

// Returns the parameter that `weight` is, or is the cast of; else an invalid State.
StateId parameter_of(const Graph& g, Value weight) {
  const Node* node = &g.producer(weight);
  if (node->as<Cast>() != nullptr) node = &g.producer(node->in[0]);
  return node->is_leaf() ? node->state : StateId{};
}

int count_blocks(const Graph& graph) {
  int count = 0;
  for (int32_t i = 0; i < graph.size(); ++i) count = std::max(count, graph.node(i).label.block + 1);
  return count;
}

class Marker {
 public:
  Marker(Graph& graph, const Float8Layers& layers, std::vector<std::string>& notes)
      : graph_(graph), layers_(layers), notes_(notes), num_blocks_(count_blocks(graph)) {}

  Float8Marks run() {
    for (int32_t i = 0; i < graph_.size(); ++i) {
      Node& n = graph_.mutable_node(i);
      if (n.as<LmHeadLoss>() != nullptr) mark_head(n);
      if (n.is_leaf() || n.label.block < 0) continue;
      if (n.as<Linear>() != nullptr) mark_matmul(n);
      if (n.as<LinearGradInput>() != nullptr && is_marked_[n.in[1]])
        set_float8<LinearGradInput>(n, name_of(n.in[1]));
      if (n.as<LinearGradWeight>() != nullptr && !n.accumulations.empty()) mark_grad_weight(n);
    }
    marks_.weights = static_cast<int>(gradients_.size());
    marks_.matmuls = static_cast<int>(inputs_.size());
    return marks_;
  }

 private:
  void mark_head(Node& n) {
    const std::string why = layers_.filter(kHeadWeight, graph_.type(n.in[1]).dims);
    marks_.head = why.empty();
    if (!marks_.head) return leave(kHeadWeight, why);
    LmHeadLoss op = *n.as<LmHeadLoss>();
    op.low_precision = true;
    op.long_chunks = layers_.long_loss_chunks;
    n.op = std::make_shared<const LmHeadLoss>(std::move(op));
  }

  void mark_matmul(Node& n) {
    const auto [at, is_new] = is_marked_.emplace(n.in[1], false);
    if (is_new) at->second = takes(n);
    if (at->second) set_float8<Linear>(n, name_of(n.in[1]));
  }

  const std::string& name_of(Value weight) const {
    return graph_.states()[parameter_of(graph_, weight)].name;
  }

  bool takes(const Node& n) {
    const StateDecl& weight = graph_.states()[parameter_of(graph_, n.in[1])];
    const std::string why = why_not(weight, n.label.block);
    if (!why.empty()) {
      leave(weight.name, why);
      return false;
    }
    gradients_.emplace("grad." + weight.name, weight.name);
    inputs_.insert(n.in[0]);
    return true;
  }

  void mark_grad_weight(Node& n) {
    const Node& into = graph_.producer(n.accumulations[0].into);
    if (!into.is_leaf()) return;
    const auto weight = gradients_.find(graph_.states()[into.state].name);
    if (weight != gradients_.end()) set_float8<LinearGradWeight>(n, weight->second);
  }

  std::string why_not(const StateDecl& weight, int block) const {
    if (block < layers_.bf16_at_start)
      return fmt::format("quantize.linear.float8.bf16_layers_at_start = {}", layers_.bf16_at_start);
    if (block >= num_blocks_ - layers_.bf16_at_end)
      return fmt::format("quantize.linear.float8.bf16_layers_at_end = {}", layers_.bf16_at_end);
    return layers_.filter(weight.name, weight.type.dims);
  }

  void leave(const std::string& name, const std::string& why) {
    notes_.push_back(fmt::format("float8: {} stays in the compute dtype: {}", name, why));
  }

  Graph& graph_;
  const Float8Layers& layers_;
  std::vector<std::string>& notes_;
  const int num_blocks_;
  Float8Marks marks_;
  std::map<Value, bool> is_marked_;               // by weight
  std::set<Value> inputs_;                        // of marked matmuls
  std::map<std::string, std::string> gradients_;  // State of gradients, and marked weights
};

}  // namespace

void require_float8_dims(const Graph& graph, const Float8Recipe& recipe) {
  const int64_t multiple = recipe.multiple();
  for (int32_t i = 0; i < graph.size(); ++i) {
    const Node& n = graph.node(i);
    if (!is_marked<Linear>(n)) continue;
    const Dims& dims = graph.type(n.in[1]).dims;
    const bool is_head = n.label.block < 0;
    TOK_REQUIRE(dims[0] % multiple == 0 && dims[1] % multiple == 0,
                "model.converters: {}: a float8 matmul has {} x {} weights on a rank, wanted "
                "multiples of {}; "
                "lower parallelism.tensor_parallel_degree or name {} in "
                "{}.filter_fqns",
                is_head ? "the head" : fmt::format("layer {}", n.label.block), dims[0], dims[1],
                multiple, is_head ? "\"output\"" : "it", recipe.section());
  }
}

bool is_read_as_values(const Graph& graph, Value weight) {
  for (int32_t i = 0; i < graph.size(); ++i) {
    const Node& n = graph.node(i);
    if (n.label.phase == Phase::kUpdate) continue;
    for (size_t k = 0; k < n.in.size(); ++k) {
      if (n.in[k] == weight && !reads_low_precision(n, k)) return true;
    }
  }
  return false;
}

Float8Marks mark_float8(Graph& graph, const Float8Layers& layers, std::vector<std::string>& notes) {
  return Marker(graph, layers, notes).run();
}

}  // namespace tokamak
