#include "tokamak/graph/gather_late.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "tokamak/graph/rewriter.h"

namespace tokamak {
namespace {

using Module = std::pair<int32_t, int32_t>;  // of a stage

class Late {
 public:
  explicit Late(const Graph& graph)
      : graph_(graph), waits_(static_cast<size_t>(graph.size()), false), rewriter_(graph) {
    std::vector<bool> is_read(waits_.size(), false);  // by a node that does not wait
    for (int32_t i = graph.size(); i-- > 0;) {
      const Node& node = graph.node(i);
      waits_[i] = may_wait(node) && (is_read[i] || node.accumulations.empty());
      if (waits_[i] && !is_read[i]) continue;
      for_each_use(node, [&](Value v) { is_read[v.node] = true; });
    }
    for (int32_t i = 0; i < graph.size(); ++i) {
      if (waits_[i]) nodes_of_[module_of(i)].push_back(i);
    }
  }

  Graph run() {
    for (int32_t i = 0; i < graph_.size(); ++i) {
      if (!waits_[i]) put(i);
    }
    for (const Value v : graph_.roots) put_module(v);
    return rewriter_.finish();
  }

 private:
  // A gather into a kept copy waits too, or else it would overtake others.
  static bool may_wait(const Node& node) {
    if (node.is_leaf() || node.label.phase != Phase::kUnshard) return false;
    const auto aliases = node.rules->aliases(node.op.get());
    return (node.accumulations.empty() || node.rules->is_communication) &&
           !node.rules->has_side_effect &&
           std::none_of(aliases.begin(), aliases.end(), [](const Alias& a) { return a.must; });
  }

  Module module_of(int32_t i) const {
    const Label& label = graph_.node(i).label;
    return {label.stage, label.module};
  }

  void put_module(Value v) {
    if (!waits_[v.node]) return;
    for (const int32_t i : nodes_of_.at(module_of(v.node))) put_waiting(i);
  }

  void put_waiting(int32_t i) {
    if (!std::exchange(is_put_[i], true)) put(i);
  }

  void put(int32_t i) {
    for_each_use(graph_.node(i), [&](Value v) {
      if (waits_[i] && waits_[v.node]) return put_waiting(v.node);
      put_module(v);
    });
    rewriter_.copy(i);
  }

  const Graph& graph_;
  std::vector<bool> waits_;
  std::map<Module, std::vector<int32_t>> nodes_of_;  // that wait
  std::map<int32_t, bool> is_put_;
  Rewriter rewriter_;
};

}  // namespace

Graph gather_late(const Graph& graph) {
  return Late(graph).run();
}

}  // namespace tokamak
