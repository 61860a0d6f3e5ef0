#include "tokamak/ops/float8/encode_early.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "tokamak/graph/cover_collectives.h"
#include "tokamak/graph/reorder.h"
#include "tokamak/ops/comm/collective.h"
#include "tokamak/ops/float8/quantize.h"
#include "tokamak/ops/float8/transpose_codes.h"

namespace tokamak {
namespace {

// A matmul does about this many operations while a memory-bound kernel moves one byte.
constexpr double kFlopsPerMemoryByte = 240.0;

class EarlyCodes {
 public:
  explicit EarlyCodes(const Graph& graph) : graph_(graph), order_(graph) {}

  Graph run() {
    for (int32_t i = 0; i < graph_.size(); ++i) {
      const Node& node = graph_.node(i);
      if (!node.is_leaf() && node.label.phase == Phase::kBackward)
        backwards_[node.label.stage].push_back(i);
    }
    for (const auto& [stage, nodes] : backwards_) find(nodes);
    return order_.finish();
  }

 private:
  // Finds what moves in a stage's backward.
  void find(const std::vector<int32_t>& nodes) {
    std::set<int32_t> gathered;  // the gather and its views
    double left = 0.0;           // of the gather, in operations
    for (auto at = nodes.begin(); at != nodes.end(); ++at) {
      const Node& node = graph_.node(*at);
      const bool reads = std::any_of(node.in.begin(), node.in.end(),
                                     [&](Value v) { return gathered.contains(v.node); });
      if (reads && !node.rules->is_view) return move({at, nodes.end()}, left);
      const Cost c = node.rules->is_view ? Cost{} : node_cost(graph_, node);
      if (c.kind == Cost::Kind::kGemm || c.kind == Cost::Kind::kAttention) return;
      if (gathered.empty() && is_gather(node)) {
        gathered.insert(*at);
        left = flops_beside(c, node.stream);
      } else if (reads) {
        gathered.insert(*at);
      } else if (!gathered.empty() && !node.rules->is_view && !node.rules->is_communication) {
        left -= memory_flops(c);
      }
    }
  }

  static bool is_gather(const Node& node) {
    return node.rules == &kRules<AllGather> && node.stream == kCoveredGatherStream;
  }

  static double memory_flops(const Cost& c) {
    return kFlopsPerMemoryByte * (c.bytes_read + c.bytes_written);
  }

  static bool makes_codes(const Node& node) {
    const auto* quantize = node.as<Quantize>();
    return node.as<TransposeCodes>() != nullptr ||
           (quantize != nullptr && quantize->layout == Quantize::Layout::kTransposed);
  }

  // Moves nodes of `rest` to its front.
  void move(const std::vector<int32_t>& rest, double left) {
    const Node& waits = graph_.node(rest.front());
    const auto is_saved = [&](int32_t i) { return graph_.node(i).label.phase == Phase::kForward; };
    for (auto at = rest.begin() + 1; at != rest.end() && left > 0.0; ++at) {
      const Node& node = graph_.node(*at);
      if (!makes_codes(node) || node.stream != waits.stream || node.when != waits.when ||
          !node.accumulations.empty() || node.is_dropped)
        continue;
      const double flops = memory_flops(node_cost(graph_, node));
      std::vector<int32_t> moved;
      if (flops > left || !reads_only(graph_, node, is_saved, moved)) continue;
      std::erase_if(moved, [&](int32_t i) { return i < rest.front(); });  // others may read these
      moved.push_back(*at);
      order_.in_front_of(rest.front(), moved);
      left -= flops;
    }
  }

  const Graph& graph_;
  std::map<int, std::vector<int32_t>> backwards_;  // by stage, in order
  Reorder order_;
};

}  // namespace

Graph encode_early(const Graph& graph) {
  return EarlyCodes(graph).run();
}

}  // namespace tokamak
