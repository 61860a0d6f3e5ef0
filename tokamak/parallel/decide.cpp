#include "tokamak/parallel/decide.h"

#include <algorithm>
#include <map>
#include <optional>

#include "tokamak/core/enum_array.h"
#include "tokamak/core/error.h"

namespace tokamak {
namespace {

constexpr double kNever = 1e30;

constexpr std::array kDpCuts{LogicalAxis::kBatch};
constexpr std::array kCpCuts{LogicalAxis::kSequence};
constexpr std::array kTpCuts{LogicalAxis::kHeads, LogicalAxis::kKvHeads, LogicalAxis::kMlp,
                             LogicalAxis::kVocab};

bool cuts_input(PlacementAxis axis, LogicalAxis what) {
  return std::ranges::find(traits_of(axis).cuts, what) != traits_of(axis).cuts.end();
}

class Decider {
 public:
  Decider(const Graph& graph, const Mesh& mesh, const ModelAxes& model, bool sequence_parallel)
      : g_(graph),
        model_(model),
        sequence_parallel_(sequence_parallel),
        nodes_(static_cast<size_t>(graph.size())) {
    for (size_t a = 0; a < kNumPlacementAxes; ++a)
      sizes_[a] = mesh.degree(traits_of(static_cast<PlacementAxis>(a)).mesh);
  }

  std::vector<NodePlacement> run() {
    for (int32_t i = 0; i < g_.size(); ++i) {
      if (g_.node(i).is_leaf()) place_leaf(i);
    }
    for (int32_t i = 0; i < g_.size(); ++i) {
      if (!g_.node(i).is_leaf()) place_node(i);
    }
    return std::move(nodes_);
  }

 private:
  struct Known {
    Axes axes;      // logical, by dim
    Placement now;  // for a pending sum, what it was first resharded to
    bool is_parameter = false;
    std::array<std::vector<AxisPlacement>, kNumPlacementAxes> also;  // resharded before
  };

  Known& known(Value v) { return known_[v]; }

  bool cuts_activation(PlacementAxis axis, LogicalAxis what) const {
    return cuts_input(axis, what) ||
           (sequence_parallel_ && axis == PlacementAxis::kTp && what == LogicalAxis::kSequence);
  }

  const LogicalAxis& axis_of(Value v, int dim) { return known(v).axes[dim]; }

  std::shared_ptr<const Ranges> ranges_for(LogicalAxis what, int64_t extent, PlacementAxis axis,
                                           std::string_view name) {
    using enum LogicalAxis;
    const int n = sizes_[static_cast<size_t>(axis)];
    if (what == kHeads || what == kKvHeads) {
      TOK_REQUIRE(n <= model_.num_heads,
                  "parallelism.tensor_parallel_degree = {}: wanted at most one rank for each of "
                  "the model's {} attention heads",
                  n, model_.num_heads);
      const HeadRanges split = split_heads(model_.num_heads, model_.num_kv_heads, n);
      Ranges ranges = what == kHeads ? split.heads : split.kv_heads;
      const int64_t unit = extent / (what == kHeads ? model_.num_heads : model_.num_kv_heads);
      for (Range& r : ranges) r = {.begin = r.begin * unit, .end = r.end * unit};
      return std::make_shared<const Ranges>(std::move(ranges));
    }
    TOK_REQUIRE(n <= extent, "{} = {}: {} has {} elements to cut", traits_of(axis).degree_key, n,
                name, extent);
    return std::make_shared<const Ranges>(split_aligned(extent, n));
  }

  void place_leaf(int32_t i) {
    const StateDecl& decl = g_.states()[g_.node(i).state];
    Known k{.axes = decl.axes, .is_parameter = decl.kind == StateKind::kParameter};
    k.axes.resize(decl.type.dims.size(), LogicalAxis::kNone);
    for (size_t a = 0; a < kNumPlacementAxes; ++a) {
      const auto axis = static_cast<PlacementAxis>(a);
      for (size_t d = 0; sizes_[a] > 1 && d < k.axes.size(); ++d) {
        if (!cuts_input(axis, k.axes[d])) continue;
        // One key-value head is whole on every rank.
        if (k.axes[d] == LogicalAxis::kKvHeads && model_.num_kv_heads == 1) continue;
        k.now[a] = {.shard = cut(static_cast<int>(d)),
                    .ranges = ranges_for(k.axes[d], decl.type.dims[d], axis, decl.name)};
        break;
      }
    }
    nodes_[i].out = {k.now};
    known_[{i, 0}] = std::move(k);
  }

  // Logical axes of outputs follow from which dims strategies cut together.
  std::vector<Axes> output_axes(const Node& n, std::span<const Strategy> strategies) {
    std::vector<Axes> axes;
    for (size_t k = 0; k < n.out.size(); ++k) {
      axes.emplace_back(n.out[k].dims.size(), LogicalAxis::kNone);
      const auto root = destination(n, static_cast<int>(k));
      if (root) axes.back() = known(*root).axes;
    }
    for (const Strategy& s : strategies) {
      for (size_t k = 0; k < s.out.size(); ++k) {
        if (!s.out[k].is_cut()) continue;
        LogicalAxis& target = axes[k][s.out[k].dim];
        for (size_t i = 0; i < n.in.size() && target == LogicalAxis::kNone; ++i) {
          if (s.in[i].is_cut()) target = axis_of(n.in[i], s.in[i].dim);
        }
      }
    }
    return axes;
  }

  // Returns the State that an output accumulates into, looking through earlier contributions.
  std::optional<Value> destination(const Node& n, int out) const {
    auto a = n.accumulation(out);
    while (a && !g_.producer(a->into).is_leaf()) a = g_.producer(a->into).accumulation(a->into.out);
    return a ? std::optional(a->into) : std::nullopt;
  }

  bool is_allowed(const Node& n, const Strategy& s, PlacementAxis axis,
                  std::span<const Axes> out_axes) {
    if (s.only && !traits_of(axis).mesh.contains(*s.only)) return false;
    for (size_t i = 0; i < n.in.size(); ++i) {
      if (s.in[i].is_cut() && !cuts_activation(axis, axis_of(n.in[i], s.in[i].dim))) return false;
    }
    for (size_t k = 0; k < s.out.size(); ++k) {
      if (s.out[k].is_cut() && !cuts_activation(axis, out_axes[k][s.out[k].dim])) return false;
      const auto root = destination(n, static_cast<int>(k));
      if (!root) continue;
      const Shard kept = known(*root).now[axis].shard;
      const bool fits = kept.is_cut() ? s.out[k] == kept : !s.out[k].is_cut();
      if (!fits) return false;
    }
    return true;
  }

  double reshard_cost(Value v, size_t a, Shard to) {
    Known& k = known(v);
    const Shard from = k.now[a].shard;
    if (from == to) return 0.0;
    for (const AxisPlacement& p : k.also[a]) {
      if (p.shard == to) return 0.0;
    }
    if (k.is_parameter || to == kPartialSum) return kNever;
    const double bytes = static_cast<double>(g_.type(v).bytes());
    const double part = (sizes_[a] - 1.0) / sizes_[a];
    if (from == kReplicated) return 0.0;
    if (from == kPartialSum) return to == kReplicated ? 2.0 * bytes * part : bytes * part;
    return bytes * part;
  }

  const Strategy& choose(const Node& n, size_t a, std::span<const Strategy> strategies,
                         std::span<const Axes> out_axes) {
    const Strategy* best = nullptr;
    double least = kNever;
    for (const Strategy& s : strategies) {
      if (!is_allowed(n, s, static_cast<PlacementAxis>(a), out_axes)) continue;
      double cost = 0.0;
      for (size_t i = 0; i < n.in.size(); ++i) cost += reshard_cost(n.in[i], a, s.in[i]);
      if (cost >= least) continue;
      least = cost;
      best = &s;
    }
    TOK_REQUIRE(best != nullptr, "{}: cannot be placed over {} {}", n.rules->name,
                traits_of(static_cast<PlacementAxis>(a)).name, sizes_[a]);
    return *best;
  }

  // Returns the ranges of a cut that an operand gets: its own, those of another operand that is cut
  // along a dim of this extent, or even ones.
  std::shared_ptr<const Ranges> shared_ranges(const Node& n, const Strategy& s, size_t a,
                                              int64_t extent, size_t out) {
    std::shared_ptr<const Ranges> scaled;
    for (size_t i = 0; i < n.in.size(); ++i) {
      const AxisPlacement& p = known(n.in[i]).now[a];
      if (!s.in[i].is_cut() || p.shard != s.in[i]) continue;
      const int64_t own = g_.type(n.in[i]).dims[s.in[i].dim];
      if (own == extent) return p.ranges;
      if (scaled != nullptr) continue;
      Ranges ranges = *p.ranges;
      bool is_exact = true;
      for (Range& r : ranges) {
        is_exact = is_exact && r.begin * extent % own == 0 && r.end * extent % own == 0;
        r = {.begin = r.begin * extent / own, .end = r.end * extent / own};
      }
      if (is_exact) scaled = std::make_shared<const Ranges>(std::move(ranges));
    }
    if (scaled != nullptr) return scaled;
    if (const auto root = destination(n, static_cast<int>(out))) return known(*root).now[a].ranges;
    return std::make_shared<const Ranges>(split_aligned(extent, sizes_[a]));
  }

  void place_node(int32_t i) {
    const Node& n = g_.node(i);
    Types types;
    for (const Value v : n.in) types.push_back(g_.type(v));
    const std::vector<Strategy> strategies = n.rules->place(n.op.get(), types);
    const std::vector<Axes> out_axes = output_axes(n, strategies);
    NodePlacement& p = nodes_[i];
    p.in.resize(n.in.size());
    p.out.resize(n.out.size());
    for (size_t a = 0; a < kNumPlacementAxes; ++a) {
      if (sizes_[a] == 1) continue;
      const Strategy& s = choose(n, a, strategies, out_axes);
      p.strategy[a] = s;
      for (size_t k = 0; k < n.in.size(); ++k) p.in[k][a] = take(n, s, a, k);
      for (size_t k = 0; k < n.out.size(); ++k) {
        p.out[k][a].shard = s.out[k];
        if (s.out[k].is_cut()) {
          p.out[k][a].ranges = shared_ranges(n, s, a, n.out[k].dims[s.out[k].dim], k);
        }
      }
    }
    for (size_t k = 0; k < n.out.size(); ++k) {
      known_[{i, static_cast<int32_t>(k)}] = {
          .axes = out_axes[k], .now = p.out[k], .is_parameter = is_copy_of_parameter(n)};
    }
  }

  // Returns the placement that the strategy wants for input k; remembers that it will be there.
  AxisPlacement take(const Node& n, const Strategy& s, size_t a, size_t k) {
    Known& v = known(n.in[k]);
    if (v.now[a].shard == s.in[k]) return v.now[a];
    for (const AxisPlacement& p : v.also[a]) {
      if (p.shard == s.in[k]) return p;
    }
    AxisPlacement want{.shard = s.in[k]};
    if (want.shard.is_cut()) {
      const int64_t extent = g_.type(n.in[k]).dims[want.shard.dim];
      want.ranges = shared_ranges(n, s, a, extent, 0);
    }
    if (v.now[a].shard == kPartialSum) {
      v.now[a] = want;
    } else {
      v.also[a].push_back(want);
    }
    return want;
  }

  // Compute copies count as parameters too, since buckets gather them.
  bool is_copy_of_parameter(const Node& n) {
    return n.in.size() == 1 && n.label.phase == Phase::kUnshard && known(n.in[0]).is_parameter;
  }

  const Graph& g_;
  const ModelAxes& model_;
  bool sequence_parallel_;
  EnumArray<PlacementAxis, int, kNumPlacementAxes> sizes_{};
  std::vector<NodePlacement> nodes_;
  std::map<Value, Known> known_;
};

}  // namespace

const PlacementAxisTraits& traits_of(PlacementAxis axis) {
  static constexpr EnumArray<PlacementAxis, PlacementAxisTraits, kNumPlacementAxes> kTraits{
      PlacementAxisTraits{.name = "dp",
                          .mesh = kBatchAxes,
                          .degree_key = "parallelism.data_parallel_shard_degree",
                          .cuts = kDpCuts},
      PlacementAxisTraits{.name = "cp",
                          .mesh = {MeshAxis::kCp},
                          .degree_key = "parallelism.context_parallel_degree",
                          .cuts = kCpCuts,
                          .localizes = MeshAxis::kCp},
      PlacementAxisTraits{.name = "tp",
                          .mesh = {MeshAxis::kTp},
                          .degree_key = "parallelism.tensor_parallel_degree",
                          .cuts = kTpCuts,
                          .localizes = MeshAxis::kTp}};
  return kTraits[axis];
}

std::vector<NodePlacement> decide_placements(const Graph& graph, const Mesh& mesh,
                                             const ModelAxes& model, bool sequence_parallel) {
  return Decider(graph, mesh, model, sequence_parallel).run();
}

bool cuts_blocks_evenly(const Graph& global, const std::vector<NodePlacement>& placements) {
  constexpr auto kTp = static_cast<size_t>(PlacementAxis::kTp);
  for (int32_t i = 0; i < global.size(); ++i) {
    const Node& n = global.node(i);
    if (!n.is_leaf()) continue;
    const StateDecl& state = global.states()[n.state];
    if (state.kind != StateKind::kParameter || state.block < 0) continue;
    const AxisPlacement& cut = placements[i].out[0][kTp];
    if (!cut.shard.is_cut()) continue;
    const Ranges& ranges = *cut.ranges;
    const bool is_even = std::all_of(ranges.begin(), ranges.end(),
                                     [&](const Range& r) { return r.size() == ranges[0].size(); });
    if (!is_even) return false;
  }
  return true;
}

}  // namespace tokamak
