#include "tokamak/graph/graph.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tokamak/core/error.h"

namespace tokamak {

std::string_view name_of(Phase phase) {
  switch (phase) {
    case Phase::kUnshard:
      return "unshard";
    case Phase::kForward:
      return "forward";
    case Phase::kBackward:
      return "backward";
    case Phase::kWeightGradient:
      return "weight_gradient";
    case Phase::kUpdate:
      return "update";
  }
  return "?";
}

std::optional<Accumulation> Node::accumulation(int output) const {
  for (const Accumulation& a : accumulations) {
    if (a.out == output) return a;
  }
  return std::nullopt;
}

std::vector<Value> Graph::add_node(const OpRules* rules, std::shared_ptr<const void> op,
                                   std::vector<Value> in) {
  while (!in.empty() && !in.back().valid()) in.pop_back();
  Types types;
  for (const Value v : in) {
    TOK_CHECK(v.valid() && v.node < size(), "{}: an input is not a value of this graph",
              rules->name);
    types.push_back(type(v));
  }
  Types out = rules->infer(op.get(), types);
  const int32_t id = append({.rules = rules,
                             .op = std::move(op),
                             .in = std::move(in),
                             .out = std::move(out),
                             .label = label});
  std::vector<Value> values(node(id).out.size());
  for (size_t i = 0; i < values.size(); ++i) values[i] = {id, static_cast<int32_t>(i)};
  return values;
}

int32_t Graph::append(Node node) {
  if (node.is_leaf()) {
    const auto state = static_cast<size_t>(node.state.index);
    if (state >= leaves_.size()) leaves_.resize(state + 1, -1);
    if (leaves_[state] < 0) leaves_[state] = size();
  }
  nodes_.push_back(std::move(node));
  return size() - 1;
}

Value Graph::read(StateId state) {
  const auto at = static_cast<size_t>(state.index);
  if (at < leaves_.size() && leaves_[at] >= 0) return {leaves_[at], 0};
  return {append({.out = {(*states_)[state].type}, .label = label, .state = state}), 0};
}

bool Graph::can_accumulate(Value value) const {
  const Node& n = producer(value);
  if (n.is_leaf() || n.accumulation(value.out)) return false;
  const auto outs = n.rules->accumulates(n.op.get());
  return std::find(outs.begin(), outs.end(), value.out) != outs.end();
}

void Graph::accumulate(Value value, Value into, AccumulateMode mode) {
  TOK_CHECK(can_accumulate(value), "{} output {}", producer(value).rules->name, value.out);
  TOK_CHECK(type(value) == type(into), "{}: {} into {}", producer(value).rules->name,
            to_string(type(value)), to_string(type(into)));
  TOK_CHECK(producer(into).is_leaf() || into.node < value.node, "{}: the destination is made later",
            producer(value).rules->name);
  mutable_node(value.node).accumulations.push_back({.out = value.out, .into = into, .mode = mode});
}

std::vector<Value> no_gradient(const void*, Graph& graph, int32_t self, std::span<const Value>) {
  TOK_CHECK(false, "{} has no gradient", graph.node(self).rules->name);
}

Cost node_cost(const Graph& graph, const Node& node) {
  Types in;
  for (const Value v : node.in) {
    if (v.valid()) in.push_back(graph.type(v));
  }
  return node.rules->cost(node.op.get(), in, node.out);
}

void put_communication_on(Graph& graph, int32_t first, int stream) {
  for (int32_t i = first; i < graph.size(); ++i) {
    Node& node = graph.mutable_node(i);
    if (!node.is_leaf() && node.rules->is_communication) node.stream = stream;
  }
}

}  // namespace tokamak
