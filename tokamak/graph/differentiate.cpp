#include "tokamak/graph/differentiate.h"

#include <map>
#include <set>

#include "tokamak/core/error.h"

namespace tokamak {
namespace {

// Returns which nodes depend on `wrt`; only those are differentiated.
std::vector<bool> reached_from(const Graph& graph, std::span<const Value> wrt) {
  std::vector<bool> reached(graph.size(), false);
  std::set<Value> starts(wrt.begin(), wrt.end());
  for (int32_t i = 0; i < graph.size(); ++i) {
    for (const Value v : graph.node(i).in) {
      if (v.valid() && (starts.contains(v) || reached[v.node])) reached[i] = true;
    }
  }
  return reached;
}

// Contributions are summed in the module that makes the last of them, so that only one value
// crosses to the previous module.
const Label& label_of_sum(const Graph& graph, Value a, Value b) {
  const Label& x = graph.producer(a).label;
  const Label& y = graph.producer(b).label;
  return x.module < y.module ? x : y;
}

}  // namespace

std::vector<std::vector<Value>> differentiate(Graph& graph, std::span<const Seed> seeds,
                                              std::span<const Value> wrt, const SumRule& sum) {
  const std::vector<bool> reached = reached_from(graph, wrt);
  const std::set<Value> targets(wrt.begin(), wrt.end());
  std::map<Value, std::vector<Value>> cotangents;
  for (const Seed& s : seeds) cotangents[s.of].push_back(s.cotangent);

  for (int32_t i = graph.size(); i-- > 0;) {
    if (!reached[i]) continue;
    const Node& node = graph.node(i);
    Label label = node.label;
    label.phase = Phase::kBackward;
    const LabelScope scope(graph, label);
    std::vector<Value> dy(node.out.size());
    bool any = false;
    for (size_t k = 0; k < dy.size(); ++k) {
      const auto it = cotangents.find({i, static_cast<int32_t>(k)});
      if (it == cotangents.end() || it->second.empty()) continue;
      Value total = it->second.front();
      for (size_t j = 1; j < it->second.size(); ++j) {
        const LabelScope where(graph, label_of_sum(graph, total, it->second[j]));
        total = sum(graph, total, it->second[j]);
      }
      dy[k] = total;
      any = true;
    }
    if (!any) continue;
    const std::vector<Value> dx = node.rules->gradient(node.op.get(), graph, i, dy);
    TOK_CHECK(dx.size() <= node.in.size(), "{}: {} gradients for {} inputs", node.rules->name,
              dx.size(), node.in.size());
    for (size_t k = 0; k < dx.size(); ++k) {
      if (!dx[k].valid()) continue;
      const Value x = node.in[k];
      TOK_CHECK(graph.type(dx[k]).dims == graph.type(x).dims, "{}: gradient {} is {}, input is {}",
                node.rules->name, k, to_string(graph.type(dx[k])), to_string(graph.type(x)));
      if (targets.contains(x) || reached[x.node]) cotangents[x].push_back(dx[k]);
    }
  }

  std::vector<std::vector<Value>> result;
  for (const Value v : wrt) result.push_back(cotangents[v]);
  return result;
}

}  // namespace tokamak
