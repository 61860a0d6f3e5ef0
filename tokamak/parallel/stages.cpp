#include "tokamak/parallel/stages.h"

#include <map>
#include <set>

#include "tokamak/core/error.h"
#include "tokamak/graph/streams.h"
#include "tokamak/ops/comm/collective.h"

namespace tokamak {
namespace {

class Keeper {
 public:
  Keeper(const Graph& graph, const RankContext& context)
      : graph_(graph), context_(context), kept_(graph.states()) {}

  Graph run() {
    find_readers();
    for (int32_t i = 0; i < graph_.size(); ++i) {
      const Node& n = graph_.node(i);
      if (n.is_leaf() || !is_mine(n)) continue;
      copy(i);
      send_outputs(i);
    }
    for (const Value v : graph_.roots) kept_.roots.push_back(mapped(v, graph_.producer(v).label));
    return std::move(kept_);
  }

 private:
  int here() const { return context_.coordinate(MeshAxis::kPp); }

  bool is_mine(const Node& n) const {
    return n.label.phase == Phase::kUpdate || context_.runs_stage(n.label.stage);
  }

  // Finds stages on other ranks that read a value of this rank.
  void find_readers() {
    for (int32_t i = 0; i < graph_.size(); ++i) {
      const Node& reader = graph_.node(i);
      if (reader.is_leaf() || is_mine(reader)) continue;
      for_each_use(reader, [&](Value v) {
        const Node& producer = graph_.producer(v);
        if (!producer.is_leaf() && is_mine(producer)) readers_[v].insert(reader.label.stage);
      });
    }
  }

  // Phases do not show the direction, because the head's forward makes gradients too.
  static Phase direction(int from, int to) {
    return from < to ? Phase::kForward : Phase::kBackward;
  }

  // Messages of one pair and direction keep their order; other messages may overtake them.
  static int message_stream(const CommGroup& group) { return kFirstMessageStream + group.id; }

  // Returns a number of its own for each message of what a node makes.
  static int32_t message_part(const Node& producer, int32_t out, int to_stage) {
    return to_stage * static_cast<int32_t>(producer.out.size()) + out;
  }

  void copy(int32_t i) {
    Node node = graph_.node(i);
    for (Value& v : node.in) v = mapped(v, node.label);
    for (Accumulation& a : node.accumulations) a.into = mapped(a.into, node.label);
    const auto outs = static_cast<int32_t>(node.out.size());
    const int32_t id = kept_.append(std::move(node));
    for (int32_t k = 0; k < outs; ++k) map_[{i, k}] = {id, k};
  }

  Value mapped(Value v, const Label& reader) {
    if (!v.valid()) return v;
    if (const auto it = map_.find(v); it != map_.end()) return it->second;
    const Node& producer = graph_.producer(v);
    if (producer.is_leaf()) {
      copy(v.node);
      return map_.at(v);
    }
    TOK_CHECK(!is_mine(producer), "{} is used before it is made", producer.rules->name);
    Value& received = received_[{v, reader.stage}];
    if (received.valid()) return received;
    Label label = producer.label;
    label.phase = direction(producer.label.stage, reader.stage);
    label.stage = reader.stage;
    label.block = reader.block;
    label.module = reader.module;
    label.origin.part = message_part(producer, v.out, reader.stage);
    const LabelScope scope(kept_, label);
    const CommGroup group = context_.message_group(context_.pp_of(producer.label.stage), here());
    received = kept_.apply(Recv{.group = group, .type = graph_.type(v)}, {});
    kept_.mutable_node(received.node).stream = message_stream(group);
    return received;
  }

  void send_outputs(int32_t i) {
    const auto outs = static_cast<int32_t>(graph_.node(i).out.size());
    for (int32_t k = 0; k < outs; ++k) {
      const auto it = readers_.find({i, k});
      if (it == readers_.end()) continue;
      for (const int stage : it->second) {
        Label label = graph_.node(i).label;
        label.phase = direction(label.stage, stage);
        label.origin.part = message_part(graph_.node(i), k, stage);
        const LabelScope scope(kept_, label);
        const CommGroup group = context_.message_group(here(), context_.pp_of(stage));
        kept_.add(Send{.group = group}, {map_.at({i, k})});
        kept_.mutable_node(kept_.size() - 1).stream = message_stream(group);
      }
    }
  }

  const Graph& graph_;
  const RankContext& context_;
  Graph kept_;
  std::map<Value, Value> map_;
  std::map<std::pair<Value, int>, Value> received_;
  std::map<Value, std::set<int>> readers_;
};

}  // namespace

Graph keep_stages(const Graph& graph, const RankContext& context) {
  if (context.options->mesh.degree(MeshAxis::kPp) == 1) return graph;
  return Keeper(graph, context).run();
}

}  // namespace tokamak
