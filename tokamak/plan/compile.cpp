#include "tokamak/plan/compile.h"

#include <algorithm>
#include <optional>
#include <set>
#include <tuple>

#include <fmt/ranges.h>

#include "tokamak/core/error.h"
#include "tokamak/graph/cover_collectives.h"
#include "tokamak/graph/fuse.h"
#include "tokamak/graph/gather_early.h"
#include "tokamak/graph/gather_late.h"
#include "tokamak/ops/float8/encode_early.h"
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

bool communicates_alike(const Plan& a, const Plan& b) {
  const auto calls = [](const Plan& plan) {
    using Call = std::tuple<size_t, const OpRules*, int, Phase, int32_t, Origin>;
    std::vector<Call> all;
    for (size_t s = 0; s < plan.segments.size(); ++s) {
      for (const Task& task : plan.segments[s].tasks) {
        if (!task.rules->is_communication) continue;
        const Label& label = task.label;
        all.emplace_back(s, task.rules, task.rules->group(task.op.get()).id, label.phase,
                         label.block, label.origin);
      }
    }
    return all;
  };
  return calls(a) == calls(b);
}

std::set<int32_t> blocks_of(const Graph& graph) {
  std::set<int32_t> blocks;
  for (int32_t i = 0; i < graph.size(); ++i) {
    const Label& label = graph.node(i).label;
    if (label.phase == Phase::kForward && label.block >= 0) blocks.insert(label.block);
  }
  return blocks;
}

// Plans one graph in several ways.
class Compiler {
 public:
  Compiler(const Graph& expanded, const StateLayout& layout, const CompileOptions& options)
      : expanded_(expanded), layout_(layout), options_(options) {}

  Plan run() {
    const Graph given = fused(expanded_, options_.recompute);
    Plan plan = smallest(given, Packing::kBySize);
    if (!is_above_goal(plan) || !options_.trades_time) return plan;
    take_if_smaller(smallest(given, Packing::kTight), plan);
    if (!is_above_goal(plan)) return plan;
    return plan_for_more_time(std::move(plan));
  }

 private:
  void log(const char* pass, const Graph& g) const {
    if (options_.log) options_.log(pass, g);
  }

  bool is_above_goal(const Plan& plan) const {
    return options_.peak_goal > 0 && plan.peak_bytes() > options_.peak_goal;
  }

  // Ranks may decide unlike, so what they send each other must be the same.
  static bool take_if_smaller(Plan other, Plan& plan) {
    const bool takes = other.peak_bytes() < plan.peak_bytes() && communicates_alike(other, plan);
    if (takes) plan = std::move(other);
    return takes;
  }

  // Returns a plan that keeps to the goal by making again what `plan` keeps, if there is one, or
  // the smaller of `plan` and one that makes codes of the head again.
  Plan plan_for_more_time(Plan plan) const {
    const Graph again = make_head_codes_again(expanded_);
    const bool has_again = again.size() != expanded_.size();
    const auto try_again = [&] {
      if (has_again)
        take_if_smaller(smallest(fused(again, options_.recompute), Packing::kTight), plan);
    };
    const std::vector<RecomputePolicy> policies = policies_that_keep_less();
    if (!can_keep_less(again, policies, plan)) {
      try_again();
      return plan;
    }
    // Codes of the head take about as long to make again as one block's attention and matmuls.
    for (const RecomputePolicy& policy : policies) {
      if (std::optional<Plan> less = leaner(expanded_, policy, plan)) return *less;
      if (&policy == &policies.front()) try_again();
      if (!is_above_goal(plan)) return plan;
      if (!has_again) continue;
      if (std::optional<Plan> less = leaner(again, policy, plan)) return *less;
    }
    return plan;
  }

  // Whether a plan keeps to the goal that keeps less of all blocks, which saves trying them in
  // vain.
  bool can_keep_less(const Graph& again, const std::vector<RecomputePolicy>& policies,
                     const Plan& plan) const {
    const size_t num_blocks = blocks_of(expanded_).size();
    return std::any_of(policies.begin(), policies.end(), [&](const RecomputePolicy& policy) {
      return policy.mode_of_block.size() == num_blocks && leaner(again, policy, plan);
    });
  }

  static bool gathers_at_peak(const Plan& plan) {
    return std::any_of(plan.segments.begin(), plan.segments.end(), [&](const Segment& segment) {
      return segment.runs == Segment::Runs::kOnceBefore &&
             scratch_bytes(segment) == plan.arena_bytes[ArenaKind::kScratch];
    });
  }

  // Returns a plan that recomputes by `policy` if it keeps to the goal and sends what `plan` sends.
  std::optional<Plan> leaner(const Graph& expanded, const RecomputePolicy& policy,
                             const Plan& plan) const {
    Plan less = smallest(fused(expanded, policy), Packing::kTight);
    if (is_above_goal(less) || !communicates_alike(less, plan)) return std::nullopt;
    for (const auto& [block, mode] : policy.mode_of_block) less.leaner_blocks.push_back(block);
    return less;
  }

  Graph fused(const Graph& expanded, const RecomputePolicy& policy) const {
    Graph g = drop_unread_codes(eliminate_dead(recompute(expanded, layout_, policy)));
    if (splits_backward(options_.pipeline)) g = split_weight_gradients(g);
    log("recompute", g);
    if (policy.emit_on_backward) g = eliminate_dead(emit_on_backward(g, layout_));
    if (options_.fuse) g = fuse_producers(accumulate_sums(g), layout_);
    return g;
  }

  Plan planned(const Graph& fused, Packing packing) const {
    log("fuse", fused);
    const bool joins = options_.joins_forwards && !options_.pipeline.empty();
    const Graph cut = joins ? cut_weight_gradients(fused) : fused;
    log("cut weight gradients", cut);
    const Graph early = gather_early(cut);
    log("gather early", early);
    const Graph covered = cover_collectives(early, joins);
    log("cover collectives", covered);
    const Graph ordered = gather_together(covered);
    log("gather together", ordered);
    const std::optional<Graph> encoded =
        options_.fuse_float8 ? encode_early(ordered) : std::nullopt;
    if (!encoded) return with_buffers(ordered, packing);
    log("encode early", *encoded);
    Plan plan = with_buffers(*encoded, packing);
    if (!is_above_goal(plan)) return plan;
    Plan late = with_buffers(ordered, packing);
    return late.peak_bytes() < plan.peak_bytes() ? late : plan;
  }

  Plan with_buffers(const Graph& g, Packing packing) const {
    const ChosenVariants variants = choose_variants(g, options_.target);
    const auto assigned = [&](const std::vector<SegmentNodes>& segments) {
      Plan plan = assign_buffers(g, layout_, segments, variants, options_.target, packing);
      plan.groups = options_.groups;
      return plan;
    };
    if (options_.pipeline.empty()) return assigned(cut_segments(g, options_.split_backward));
    Plan plan = assigned(cut_stages(g, options_.overlaps_gathers));
    if (options_.joins_forwards) join_forwards(plan, options_.pipeline);
    plan.items = pipeline_items(plan.segments, options_.pipeline);
    let_reductions_outlive(plan);
    if (options_.overlaps_gathers) let_gathers_outlive(plan);
    assign_slots(plan);
    return plan;
  }

  // Returns the fastest of the plans that keep to the goal, or the smallest.
  Plan smallest(const Graph& g, Packing packing) const {
    if (!options_.fuse_float8) return planned(g, packing);
    // Inputs of codes of tiles may need more memory than values.
    const Graph values = fuse_float8(g, false);
    const Graph codes = fuse_float8(g, true);
    const Graph* best = &values;
    Plan plan = planned(values, packing);
    if (has_codes_of_tiles(codes)) {
      Plan with_codes = planned(codes, packing);
      if (with_codes.peak_bytes() <= std::max(plan.peak_bytes(), options_.peak_goal)) {
        plan = std::move(with_codes);
        best = &codes;
      }
    }
    if (!is_above_goal(plan)) return plan;
    const Graph apart = make_layouts_apart(values);
    if (take_if_smaller(planned(apart, packing), plan)) best = &apart;
    if (!options_.trades_time || !gathers_at_peak(plan)) return plan;
    for (const Graph* late : {best, &apart}) {
      if (is_above_goal(plan)) take_if_smaller(planned(gather_late(*late), packing), plan);
    }
    return plan;
  }

  // Returns policies that keep less and less of more and more blocks, from the first on: their
  // values are alive the longest.
  std::vector<RecomputePolicy> policies_that_keep_less() const {
    using enum RecomputePolicy::Mode;
    RecomputePolicy policy = options_.recompute;
    if (policy.mode == kFull) return {};
    const std::set<int32_t> blocks = blocks_of(expanded_);
    std::vector<RecomputePolicy> policies;
    const auto add = [&](RecomputePolicy::Mode mode) {
      RecomputePolicy less = policy;
      size_t count = 0;
      size_t next = 1;
      for (const int32_t block : blocks) {
        less.mode_of_block[block] = mode;
        if (++count != next && count != blocks.size()) continue;
        policies.push_back(less);
        next *= 2;
      }
    };
    if (policy.mode != kSelectiveOps && policy.mode != kMemoryBudget) {
      policy.saved_ops = {"attention"};
      policy.halved_ops = {"linear", "scaled_matmul"};
      add(kSelectiveOps);
    }
    add(kFull);
    return policies;
  }

  const Graph& expanded_;
  const StateLayout& layout_;
  const CompileOptions& options_;
};

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
  const auto log = [&](const char* pass, const Graph& g) {
    if (options.log) options.log(pass, g);
  };
  log("given", graph);
  Graph g = expand_composites(graph);
  log("expand composites", g);
  g = eliminate_dead(g);
  log("eliminate dead", g);
  return Compiler(g, layout, options).run();
}

}  // namespace tokamak
