#include "tokamak/graph/compile.h"

#include <fmt/ranges.h>

#include "tokamak/core/error.h"
#include "tokamak/graph/buffers.h"

namespace tokamak {
namespace {

Types input_types(const Graph& graph, const Node& node) {
  Types types;
  for (const Value v : node.in) types.push_back(graph.type(v));
  return types;
}

bool runs_here(const Variant& variant, const Target& target) {
  if (variant.backend == kCommunication.backend) return true;
  return variant.backend == target.backend &&
         (!target.reference_only || variant.name == kCpuReference.name);
}

const Variant* choose(const Graph& graph, const Node& node, const Target& target) {
  const Types in = input_types(graph, node);
  const KernelTypes types{.in = in, .out = node.out};
  for (const Variant& variant : node.rules->variants()) {
    if (!runs_here(variant, target)) continue;
    if (variant.accepts == nullptr || variant.accepts(node.op.get(), types).empty())
      return &variant;
  }
  fail("{}: no {} kernel takes these types: {}", node.rules->name, target.backend,
       fmt::join(explain_variants(node, types, target), "; "));
}

ChosenVariants choose_variants(const Graph& graph, const Target& target) {
  ChosenVariants chosen(static_cast<size_t>(graph.size()), nullptr);
  for (int32_t i = 0; i < graph.size(); ++i) {
    const Node& node = graph.node(i);
    if (!node.is_leaf() && !node.rules->is_view)
      chosen[static_cast<size_t>(i)] = choose(graph, node, target);
  }
  return chosen;
}

std::vector<SegmentNodes> cut_segments(const Graph& graph, bool split_backward) {
  using Runs = Segment::Runs;
  std::vector<SegmentNodes> all{{.name = "unshard", .runs = Runs::kOncePerStep, .nodes = {}}};
  all.push_back({.name = split_backward ? "forward" : "microbatch",
                 .runs = Runs::kPerMicrobatch,
                 .nodes = {}});
  if (split_backward)
    all.push_back({.name = "backward", .runs = Runs::kPerMicrobatch, .nodes = {}});
  all.push_back({.name = "update", .runs = Runs::kOncePerStep, .nodes = {}});
  for (int32_t i = 0; i < graph.size(); ++i) {
    const Node& node = graph.node(i);
    if (node.is_leaf()) continue;
    size_t segment = 0;
    if (node.label.phase == Phase::kForward) segment = 1;
    if (node.label.phase == Phase::kBackward) segment = split_backward ? 2 : 1;
    if (node.label.phase == Phase::kUpdate) segment = all.size() - 1;
    all[segment].nodes.push_back(i);
  }
  std::erase_if(all, [](const SegmentNodes& s) { return s.nodes.empty(); });
  return all;
}

}  // namespace

std::vector<std::string> explain_variants(const Node& node, const KernelTypes& types,
                                          const Target& target) {
  std::vector<std::string> lines;
  for (const Variant& variant : node.rules->variants()) {
    std::string reason;
    if (!runs_here(variant, target)) {
      reason = variant.backend == target.backend ? "only reference kernels are asked for"
                                                 : fmt::format("for {}", variant.backend);
    } else if (variant.accepts != nullptr) {
      reason = variant.accepts(node.op.get(), types);
    }
    lines.push_back(
        fmt::format("{}/{}: {}", node.rules->name, variant.name, reason.empty() ? "ok" : reason));
  }
  return lines;
}

Plan compile(const Graph& graph, const StateLayout& layout, const CompileOptions& options) {
  const auto log = [&](const char* pass, const Graph& g) {
    if (options.log) options.log(pass, g);
  };
  log("given", graph);
  Graph g = expand_composites(graph);
  log("expand composites", g);
  g = eliminate_dead(g);
  log("eliminate dead", g);
  g = recompute(g, options.recompute);
  log("recompute", g);
  const ChosenVariants variants = choose_variants(g, options.target);
  return assign_buffers(g, layout, cut_segments(g, options.split_backward), variants,
                        options.target);
}

}  // namespace tokamak
