#include "tokamak/parallel/distribute.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "tokamak/core/error.h"
#include "tokamak/ops/accumulate.h"
#include "tokamak/ops/attention.h"
#include "tokamak/ops/collective.h"
#include "tokamak/ops/lm_head_loss.h"
#include "tokamak/ops/pack.h"
#include "tokamak/ops/reshape.h"
#include "tokamak/ops/slice_rows.h"
#include "tokamak/parallel/buckets.h"
#include "tokamak/parallel/stages.h"

namespace tokamak {
namespace {

MeshAxis mesh_axis(size_t axis) {
  return static_cast<PlacementAxis>(axis) == PlacementAxis::kCp ? MeshAxis::kCp : MeshAxis::kTp;
}

bool replicates(const Strategy& s) {
  for (const Shard in : s.in) {
    if (in != kReplicated) return false;
  }
  for (const Shard out : s.out) {
    if (out != kReplicated) return false;
  }
  return true;
}

// Emits the local graph node by node.
class Localizer {
 public:
  Localizer(const Graph& global, const std::vector<NodePlacement>& placements, Buckets& buckets,
            RankContext& context, StateTable& local)
      : global_(global),
        placements_(placements),
        buckets_(buckets),
        context_(context),
        local_(local),
        g_(local) {}

  void run() {
    for (int32_t i = 0; i < global_.size(); ++i) {
      const Node& n = global_.node(i);
      if (n.is_leaf() || is_weight({i, 0})) continue;
      emit(i);
    }
  }

  Graph& graph() { return g_; }

  std::vector<std::pair<StateId, std::string>> partial_results;

 private:
  struct Local {
    Placement placement;
    int stage = 0;
    Value value;
  };

  int coordinate(size_t axis) const {
    if (static_cast<PlacementAxis>(axis) == PlacementAxis::kDp) {
      return context_.at[static_cast<size_t>(MeshAxis::kDpReplicate)] *
                 context_.options->mesh.degree(MeshAxis::kDpShard) +
             context_.at[static_cast<size_t>(MeshAxis::kDpShard)];
    }
    return context_.at[static_cast<size_t>(mesh_axis(axis))];
  }

  int stage_of(int32_t module) const {
    const auto& stages = context_.options->stage_of_module;
    return stages.empty() ? 0 : stages[static_cast<size_t>(module)];
  }

  bool is_parameter_leaf(Value v) const {
    const Node& n = global_.producer(v);
    return n.is_leaf() && global_.states()[n.state].kind == StateKind::kParameter;
  }

  // A parameter, or its compute copy.
  bool is_weight(Value v) const {
    const Node& n = global_.producer(v);
    if (n.is_leaf()) return is_parameter_leaf(v);
    return n.label.phase == Phase::kUnshard && n.in.size() == 1 && is_parameter_leaf(n.in[0]);
  }

  StateId state_of_weight(Value v) const {
    const Node& n = global_.producer(v);
    return n.is_leaf() ? n.state : global_.producer(n.in[0]).state;
  }

  Range range_of(const AxisPlacement& p, size_t axis) const {
    return p.shard.is_cut() ? (*p.ranges)[static_cast<size_t>(coordinate(axis))] : Range{};
  }

  // Cuts nest in the order of the axes; a dim that several axes cut is cut evenly.
  TensorType local_type(const TensorType& whole, const Placement& p) const {
    TensorType type = whole;
    for (size_t a = 0; a < kNumPlacementAxes; ++a) {
      if (!p[a].shard.is_cut()) continue;
      const auto d = static_cast<size_t>(p[a].shard.dim);
      const int64_t extent = whole.dims[d];
      if (type.dims[d] == extent) {
        type.dims[d] = range_of(p[a], a).size();
      } else {
        type.dims[d] /= static_cast<int64_t>(p[a].ranges->size());
      }
    }
    return type;
  }

  StateId local_state(StateId global, const Placement& p) {
    const StateDecl& decl = global_.states()[global];
    StateDecl mine = decl;
    mine.type = local_type(decl.type, p);
    return local_.declare_once(mine);
  }

  Value leaf(Value v) {
    const Node& n = global_.producer(v);
    return g_.read(local_state(n.state, placements_[static_cast<size_t>(v.node)].out[0]));
  }

  // The value as `want` says, for `stage`; reshards what there is and keeps it for the next.
  Value get(Value v, const Placement& want, int stage) {
    std::vector<Local>& have = values_[v];
    const bool is_leaf = global_.producer(v).is_leaf();
    if (is_leaf && have.empty()) {
      have.push_back({.placement = placements_[static_cast<size_t>(v.node)].out[0],
                      .stage = -1,
                      .value = leaf(v)});
    }
    TOK_CHECK(!have.empty(), "{} is used before it is made", global_.producer(v).rules->name);
    const Local* from = nullptr;
    double least = 1e30;
    for (const Local& l : have) {
      if (l.placement == want && (l.stage == stage || l.stage < 0 || !l_is_resharded(have, l)))
        return l.value;
      if (l.stage != stage && l_is_resharded(have, l)) continue;
      const double cost = distance(l.placement, want);
      if (cost < least) {
        least = cost;
        from = &l;
      }
    }
    TOK_CHECK(from != nullptr, "{}: no way to reshard",
              is_leaf ? "state" : global_.producer(v).rules->name);
    Local made = *from;
    made.stage = stage;
    for (size_t a = 0; a < kNumPlacementAxes; ++a) {
      if (made.placement[a] == want[a]) continue;
      made.value = reshard(made.value, a, made.placement[a], want[a], global_.type(v));
      made.placement[a] = want[a];
    }
    have.push_back(made);
    return made.value;
  }

  // The first entry is the value itself, which may cross stages; reshards belong to theirs.
  static bool l_is_resharded(const std::vector<Local>& have, const Local& l) {
    return &l != &have.front();
  }

  static double distance(const Placement& from, const Placement& to) {
    double cost = 0.0;
    for (size_t a = 0; a < kNumPlacementAxes; ++a) {
      if (from[a] == to[a]) continue;
      const Shard f = from[a].shard;
      const Shard t = to[a].shard;
      if (t == kPartialSum) return 1e30;
      if (f == kReplicated) continue;
      cost += f == kPartialSum && t == kReplicated ? 2.0 : 1.0;
      if (f.is_cut() && t.is_cut()) cost += 1.0;
    }
    return cost;
  }

  CommGroup group_of(size_t axis) const {
    TOK_CHECK(static_cast<PlacementAxis>(axis) != PlacementAxis::kDp, "activations move over dp");
    return context_.group({mesh_axis(axis)});
  }

  static Dims sizes_of(const Ranges& ranges, int64_t local_extent, int64_t whole_extent) {
    Dims sizes;
    for (const Range& r : ranges) sizes.push_back(r.size() * local_extent / whole_extent);
    return sizes;
  }

  Value reshard(Value x, size_t axis, const AxisPlacement& from, const AxisPlacement& to,
                const TensorType& whole) {
    const CommGroup group = group_of(axis);
    const auto extent = [&](Shard s) { return whole.dims[static_cast<size_t>(s.dim)]; };
    if (from.shard == kPartialSum && to.shard == kReplicated)
      return g_.apply(AllReduce{.group = group}, {x});
    if (from.shard == kPartialSum) {
      const int64_t here = g_.type(x).dims[static_cast<size_t>(to.shard.dim)];
      return reduce_scatter(x, to.shard.dim, sizes_of(*to.ranges, here, extent(to.shard)), group);
    }
    if (from.shard == kReplicated) {
      const int64_t here = g_.type(x).dims[static_cast<size_t>(to.shard.dim)];
      const Dims sizes = sizes_of(*to.ranges, here, extent(to.shard));
      int64_t begin = 0;
      for (int r = 0; r < group.rank; ++r) begin += sizes[static_cast<size_t>(r)];
      return g_.apply(SliceDim{.dim = to.shard.dim,
                               .begin = begin,
                               .end = begin + sizes[static_cast<size_t>(group.rank)]},
                      {x});
    }
    const AxisPlacement whole_again{};
    Value gathered = gather(x, from, extent(from.shard), group);
    if (to.shard == kReplicated) return gathered;
    return reshard(gathered, axis, whole_again, to, whole);
  }

  Value reduce_scatter(Value x, int dim, const Dims& sizes, const CommGroup& group) {
    TensorType type = g_.type(x);
    const Value rows = g_.apply(Split{.dim = dim, .sizes = sizes}, {x});
    const Value mine = g_.apply(ReduceScatter{.group = group}, {rows});
    type.dims[static_cast<size_t>(dim)] = sizes[static_cast<size_t>(group.rank)];
    return shaped(mine, type.dims);
  }

  // The first elements of a flat, perhaps padded piece.
  Value shaped(Value flat, const Dims& dims) {
    const TensorType want{.dtype = g_.type(flat).dtype, .dims = dims};
    if (g_.type(flat).numel() != want.numel()) {
      flat = g_.apply(Reshape{.dims = {-1}}, {flat});
      flat = g_.apply(SliceRows{.begin = 0, .end = want.numel()}, {flat});
    }
    return g_.apply(Reshape{.dims = dims}, {flat});
  }

  Value gather(Value x, const AxisPlacement& from, int64_t whole_extent, const CommGroup& group) {
    const int dim = from.shard.dim;
    TensorType type = g_.type(x);
    const Range mine = (*from.ranges)[static_cast<size_t>(group.rank)];
    const int64_t outer = type.dims[static_cast<size_t>(dim)] * whole_extent / mine.size();
    const Dims sizes = sizes_of(*from.ranges, outer, whole_extent);
    for (const int64_t size : sizes)
      TOK_CHECK(size == sizes[0], "an uneven cut of {} is gathered", to_string(type));
    const Value rows = g_.apply(AllGather{.group = group}, {x});
    type.dims[static_cast<size_t>(dim)] = outer;
    return g_.apply(Join{.dim = dim, .sizes = sizes, .dims = type.dims},
                    {g_.apply(Reshape{.dims = {group.size, -1}}, {rows})});
  }

  // The op as this rank runs it.
  AnyOp localized(const Node& n, const NodePlacement& p) {
    AnyOp op{.rules = n.rules, .op = n.op};
    const DistributeOptions& o = *context_.options;
    if (const auto* attention = n.as<Attention>()) {
      Attention mine = *attention;
      mine.context = o.context;
      mine.zigzag = o.head_and_tail;
      op = any_op(mine);
    } else if (const auto* grad = n.as<AttentionGrad>()) {
      AttentionGrad mine = *grad;
      mine.forward.context = o.context;
      mine.forward.zigzag = o.head_and_tail;
      op = any_op(mine);
    } else if (const auto* loss = n.as<LmHeadLoss>()) {
      LmHeadLoss mine = *loss;
      mine.gather_logits = !o.loss_parallel;
      op = any_op(mine);
    }
    for (const PlacementAxis axis : {PlacementAxis::kTp, PlacementAxis::kCp}) {
      const auto a = static_cast<size_t>(axis);
      if (p.strategy[a].out.empty() || replicates(p.strategy[a])) continue;
      LocalContext where{.axis = mesh_axis(a), .group = group_of(a), .strategy = p.strategy[a]};
      for (const Placement& in : p.in) {
        where.in.push_back(range_of(in[a], a));
        where.in_ranges.push_back(in[a].shard.is_cut() ? *in[a].ranges : Ranges{});
      }
      for (const Placement& out : p.out) {
        where.out.push_back(range_of(out[a], a));
        where.out_ranges.push_back(out[a].shard.is_cut() ? *out[a].ranges : Ranges{});
      }
      if (auto changed = op.rules->localize(op.op.get(), where)) op = std::move(*changed);
    }
    return op;
  }

  void emit(int32_t i) {
    const Node& n = global_.node(i);
    const NodePlacement& p = placements_[static_cast<size_t>(i)];
    Label label = n.label;
    label.stage = stage_of(label.module);
    const LabelScope scope(g_, label);
    std::vector<Value> in;
    for (size_t k = 0; k < n.in.size(); ++k) {
      in.push_back(is_weight(n.in[k]) ? buckets_.weight(g_, state_of_weight(n.in[k]), label.stage)
                                      : get(n.in[k], p.in[k], label.stage));
    }
    const AnyOp op = localized(n, p);
    const std::vector<Value> out = g_.add_node(op.rules, op.op, in);
    for (size_t k = 0; k < out.size(); ++k) {
      TOK_CHECK(g_.type(out[k]) == local_type(n.out[k], p.out[k]), "{}: output {} is {}, wanted {}",
                n.rules->name, k, to_string(g_.type(out[k])),
                to_string(local_type(n.out[k], p.out[k])));
      values_[{i, static_cast<int32_t>(k)}].push_back(
          {.placement = p.out[k], .stage = label.stage, .value = out[k]});
    }
    for (const Accumulation& a : n.accumulations) accumulate(n, a, p, out, label.stage);
  }

  void accumulate(const Node& n, const Accumulation& a, const NodePlacement& p,
                  const std::vector<Value>& out, int stage) {
    Value root = a.into;
    while (!global_.producer(root).is_leaf())
      root = global_.producer(root).accumulation(root.out)->into;
    const StateId state = global_.producer(root).state;
    const StateDecl& decl = global_.states()[state];
    const Value mine = out[static_cast<size_t>(a.out)];
    const Placement& placement = p.out[static_cast<size_t>(a.out)];
    if (decl.kind == StateKind::kGradient) {
      const Buckets::Destination to = buckets_.destination(g_, state, stage);
      g_.mutable_node(mine.node).accumulations.push_back(
          {.out = mine.out, .into = to.into, .mode = to.mode});
      buckets_.contributed(g_, to, mine);
      return;
    }
    TOK_CHECK(decl.kind == StateKind::kResult, "{} accumulates into {}", n.rules->name, decl.name);
    const StateId here = result_state(state, placement);
    g_.mutable_node(mine.node).accumulations.push_back(
        {.out = mine.out, .into = g_.read(here), .mode = a.mode});
  }

  // A result of which ranks hold terms gets State of its own; the total is made later.
  StateId result_state(StateId global, const Placement& p) {
    StateDecl decl = global_.states()[global];
    bool is_partial = context_.options->mesh.degree(MeshAxis::kPp) > 1;
    for (const AxisPlacement& axis : p) is_partial = is_partial || axis.shard == kPartialSum;
    if (!is_partial) return local_.declare_once(decl);
    const std::string total = decl.name;
    decl.name += ".part";
    const StateId part = local_.declare_once(decl);
    const std::pair<StateId, std::string> entry{part, total};
    if (std::find(partial_results.begin(), partial_results.end(), entry) == partial_results.end())
      partial_results.push_back(entry);
    return part;
  }

  const Graph& global_;
  const std::vector<NodePlacement>& placements_;
  Buckets& buckets_;
  RankContext& context_;
  StateTable& local_;
  Graph g_;
  std::map<Value, std::vector<Local>> values_;
};

}  // namespace

Distributor::Distributor(StateTable& local, const DistributeOptions& options)
    : local_(local), options_(options), context_(std::make_unique<RankContext>()) {
  *context_ = {
      .options = &options_, .at = options.mesh.coordinates(options.rank), .groups = &groups_};
}

Distributor::~Distributor() = default;

Graph Distributor::localize(const Graph& global) {
  auto placements = decide_placements(global, options_.mesh, options_.model);
  if (buckets_ == nullptr) {
    buckets_ = std::make_unique<Buckets>(lay_out_buckets(global, placements, *context_), local_,
                                         *context_);
  }
  buckets_->begin_graph();
  Localizer localizer(global, placements, *buckets_, *context_, local_);
  localizer.run();
  Graph& g = localizer.graph();
  buckets_->finish(g);
  sum_results(g, localizer.partial_results);
  return keep_stages(g, *context_);
}

void Distributor::sum_results(Graph& g,
                              const std::vector<std::pair<StateId, std::string>>& partial) {
  const LabelScope scope(g, {.phase = Phase::kUpdate});
  const CommGroup group =
      context_->group({MeshAxis::kPp, MeshAxis::kDpReplicate, MeshAxis::kDpShard, MeshAxis::kCp});
  for (const auto& [part, name] : partial) {
    StateDecl decl = local_[part];
    decl.name = name;
    const Value total = g.apply(AllReduce{.group = group}, {read_final(g, part)});
    accumulate_into(g, total, g.read(local_.declare_once(decl)), AccumulateMode::kNever);
  }
}

Value read_final(Graph& g, StateId state) {
  StateDecl window = g.states()[state];
  window.name += ".final";
  window.window_of = state;
  window.window_begin = 0;
  return g.read(g.states().declare_once(window));
}

CommGroup Distributor::norm_group() const {
  return context_->group({MeshAxis::kPp, MeshAxis::kDpShard, MeshAxis::kCp, MeshAxis::kTp});
}

std::vector<TensorPiece> Distributor::pieces() const {
  return buckets_->pieces();
}

std::vector<UpdateUnit> Distributor::units(Graph& graph) const {
  return buckets_->units(graph);
}

}  // namespace tokamak
