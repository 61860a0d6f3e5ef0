#include <set>

#include "tokamak/graph/rewriter.h"
#include "tokamak/ops/float8/fused_float8.h"

namespace tokamak {

Graph drop_unread_quantized(const Graph& graph) {
  std::set<Value> read(graph.roots.begin(), graph.roots.end());
  for (int32_t i = 0; i < graph.size(); ++i)
    for_each_use(graph.node(i), [&](Value v) { read.insert(v); });
  Rewriter rewriter(graph);
  for (int32_t i = 0; i < graph.size(); ++i) {
    const Node& node = graph.node(i);
    const auto* op = node.as<Quantize>();
    const bool is_read = read.contains({i, 0}) || read.contains({i, 1});
    if (op == nullptr || is_read || op->grid != ScaleGrid::kRows || !op->has_amax) {
      rewriter.copy(i);
      continue;
    }
    Node amax = rewriter.moved(node);
    amax.rules = &kRules<Amax>;
    amax.op = std::make_shared<const Amax>(
        Amax{.grid = op->grid, .transposed = true, .rounds_to = op->rounds_to});
    amax.out = {node.out.back()};
    rewriter.map({i, 2}, {rewriter.to.append(std::move(amax)), 0});
  }
  return rewriter.finish();
}

}  // namespace tokamak
