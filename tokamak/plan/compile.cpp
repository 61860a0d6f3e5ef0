#include "tokamak/plan/compile.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "tokamak/core/error.h"
#include "tokamak/graph/cover_collectives.h"
#include "tokamak/graph/fuse.h"
#include "tokamak/graph/gather_early.h"
#include "tokamak/ops/float8/fused_float8.h"
#include "tokamak/ops/matmul/cut_weight_gradients.h"
#include "tokamak/plan/buffers.h"
#include "tokamak/plan/join_forwards.h"
#include "tokamak/plan/outliving.h"
#include "tokamak/plan/segments.h"
#include "tokamak/plan/slots.h"

namespace tokamak {
namespace {

Types input_types(const Graph& graph, const Node& node) {
  Types types;
  for (const Value v : node.in) types.push_back(graph.type(v));
  return types;
}

bool is_plain(const Variant& variant) {
  return variant.name == kCpuReference.name || variant.name == kGpuKernel.name;
}

// Returns why the target cannot run the variant, or "".
std::string missing(const Variant& variant, const Target& target) {
  if (variant.backend == kCommunication.backend) return {};
  if (variant.backend != target.backend) return fmt::format("for {}", variant.backend);
  if (target.reference_only && !is_plain(variant)) return "only reference kernels are asked for";
  if (variant.library.substr(0, 3) == "sm_" &&
      variant.library != fmt::format("sm_{}a", target.arch))
    return fmt::format("for {}", variant.library);
  const auto& lacks = target.lacks;
  if (std::find(lacks.begin(), lacks.end(), variant.library) != lacks.end())
    return fmt::format("no {} here", variant.library);
  return {};
}

const Variant* choose(const Graph& graph, const Node& node, const Target& target) {
  const Types in = input_types(graph, node);
  const KernelTypes types{.in = in, .out = node.out};
  for (const Variant& variant : node.rules->variants()) {
    if (!missing(variant, target).empty()) continue;
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
    if (!node.is_leaf() && !node.rules->is_view) chosen[i] = choose(graph, node, target);
  }
  return chosen;
}

Plan with_buffers(const Graph& g, const StateLayout& layout, const CompileOptions& options) {
  const ChosenVariants variants = choose_variants(g, options.target);
  const auto assigned = [&](const std::vector<SegmentNodes>& segments) {
    Plan plan = assign_buffers(g, layout, segments, variants, options.target);
    plan.groups = options.groups;
    return plan;
  };
  if (options.pipeline.empty()) return assigned(cut_segments(g, options.split_backward));
  Plan plan = assigned(cut_stages(g, options.overlaps_gathers));
  if (options.joins_forwards) join_forwards(plan, options.pipeline, options.target.rates);
  plan.items = pipeline_items(plan.segments, options.pipeline);
  let_reductions_outlive(plan);
  if (options.overlaps_gathers) let_gathers_outlive(plan);
  assign_slots(plan);
  return plan;
}

}  // namespace

std::vector<std::string> explain_variants(const Node& node, const KernelTypes& types,
                                          const Target& target) {
  std::vector<std::string> lines;
  for (const Variant& variant : node.rules->variants()) {
    std::string reason = missing(variant, target);
    if (reason.empty() && variant.accepts != nullptr)
      reason = variant.accepts(node.op.get(), types);
    lines.push_back(
        fmt::format("{}/{}: {}", node.rules->name, variant.name, reason.empty() ? "ok" : reason));
  }
  return lines;
}

Plan compile(const Graph& graph, const StateLayout& layout, const CompileOptions& options) {
  const Rates& rates = options.target.rates;
  Graph g = eliminate_dead(expand_composites(graph));
  g = drop_unread_quantized(eliminate_dead(recompute(g, layout, options.recompute, rates)));
  if (splits_backward(options.pipeline)) g = split_weight_gradients(g);
  if (options.recompute.emit_on_backward) g = eliminate_dead(emit_on_backward(g, layout));
  if (options.fuse) g = fuse_producers(accumulate_sums(g), layout);
  if (options.fuse_readers) g = fuse_readers(g);
  const bool joins = options.joins_forwards && !options.pipeline.empty();
  if (joins) g = cut_weight_gradients(g, rates);
  g = gather_early(g, rates);
  g = cover_collectives(g, rates, joins);
  g = gather_together(g);
  return with_buffers(g, layout, options);
}

}  // namespace tokamak
