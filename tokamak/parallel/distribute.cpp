#include "tokamak/parallel/distribute.h"

#include <algorithm>

#include "tokamak/core/error.h"
#include "tokamak/ops/attention/attention.h"
#include "tokamak/ops/comm/collective.h"
#include "tokamak/ops/optimizer/accumulate.h"
#include "tokamak/ops/vocab/lm_head_loss.h"
#include "tokamak/parallel/buckets/buckets.h"
#include "tokamak/parallel/local_values.h"
#include "tokamak/parallel/matmuls/merge_matmuls.h"
#include "tokamak/parallel/stages.h"

namespace tokamak {
namespace {

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
            const RankContext& context, StateTable& local)
      : global_(global),
        placements_(placements),
        buckets_(buckets),
        context_(context),
        local_(local),
        g_(local),
        values_(global, placements, context, g_) {}

  void run() {
    for (int32_t i = 0; i < global_.size(); ++i) {
      const Node& n = global_.node(i);
      if (n.is_leaf() || is_weight(global_, {i, 0})) continue;
      emit(i);
    }
  }

  Graph& graph() { return g_; }

  std::vector<Distributor::PartialResult> partial_results;

 private:
  const NodePlacement& placement_of(int32_t i) const { return placements_[i]; }

  StateId state_of_weight(Value v) const {
    const Node& n = global_.producer(v);
    return n.is_leaf() ? n.state : global_.producer(n.in[0]).state;
  }

  // Returns the op as this rank runs it.
  AnyOp localized(int32_t i) const {
    const Node& n = global_.node(i);
    const NodePlacement& p = placement_of(i);
    AnyOp op{.rules = n.rules, .op = n.op};
    const DistributeOptions& o = *context_.options;
    if (const auto* attention = n.as<Attention>()) {
      Attention mine = *attention;
      mine.context = o.context;
      mine.zigzag = o.head_and_tail;
      mine.beside_matmuls = o.covers_context;
      op = any_op(mine);
    } else if (const auto* grad = n.as<AttentionGrad>()) {
      AttentionGrad mine = *grad;
      mine.forward.context = o.context;
      mine.forward.zigzag = o.head_and_tail;
      mine.forward.beside_matmuls = o.covers_context;
      op = any_op(mine);
    } else if (const auto* loss = n.as<LmHeadLoss>()) {
      LmHeadLoss mine = *loss;
      mine.gather_logits = !o.loss_parallel;
      op = any_op(mine);
    }
    for (size_t a = kNumPlacementAxes; a-- > 0;) {
      const auto axis = static_cast<PlacementAxis>(a);
      if (!traits_of(axis).localizes || p.strategy[a].out.empty() || replicates(p.strategy[a]))
        continue;
      LocalContext where{.axis = *traits_of(axis).localizes,
                         .group = context_.group(traits_of(axis).mesh),
                         .strategy = p.strategy[a]};
      for (const Placement& in : p.in) {
        where.in.push_back(values_.range_of(in[a], axis));
        where.in_ranges.push_back(in[a].shard.is_cut() ? *in[a].ranges : Ranges{});
      }
      for (const Placement& out : p.out) {
        where.out.push_back(values_.range_of(out[a], axis));
        where.out_ranges.push_back(out[a].shard.is_cut() ? *out[a].ranges : Ranges{});
      }
      if (auto changed = op.rules->localize(op.op.get(), where)) op = std::move(*changed);
    }
    return op;
  }

  Value input(int32_t i, size_t k) {
    const Value v = global_.node(i).in[k];
    const int stage = context_.stage_of(global_.node(i).label.module);
    if (is_weight(global_, v)) {
      const StateId state = state_of_weight(v);
      return reads_low_precision(global_.node(i), k)
                 ? buckets_.weight_for_low_precision(g_, state, stage)
                 : buckets_.weight(g_, state, stage);
    }
    return values_.get(v, placement_of(i).in[k], stage);
  }

  void emit(int32_t i) {
    const Node& n = global_.node(i);
    const LabelScope scope(g_, context_.label_of(global_, i));
    std::vector<Value> in;
    for (size_t k = 0; k < n.in.size(); ++k) in.push_back(input(i, k));
    const AnyOp op = localized(i);
    made(i, g_.add_node(op.rules, op.op, in));
  }

  // Records what node `i` has become.
  void made(int32_t i, const std::vector<Value>& out) {
    const Node& n = global_.node(i);
    const NodePlacement& p = placement_of(i);
    for (size_t k = 0; k < out.size(); ++k) {
      const TensorType wanted = values_.local_type(n.out[k], p.out[k]);
      TOK_CHECK(g_.type(out[k]) == wanted, "{}: output {} is {}, wanted {}", n.rules->name, k,
                to_string(g_.type(out[k])), to_string(wanted));
      values_.add({i, static_cast<int32_t>(k)},
                  {.placement = p.out[k], .stage = g_.label.stage, .value = out[k]});
    }
    for (const Accumulation& a : n.accumulations) accumulate(n, a, p, out, g_.label.stage);
  }

  void accumulate(const Node& n, const Accumulation& a, const NodePlacement& p,
                  const std::vector<Value>& out, int stage) {
    Value root = a.into;
    while (!global_.producer(root).is_leaf())
      root = global_.producer(root).accumulation(root.out)->into;
    const StateId state = global_.producer(root).state;
    const StateDecl& decl = global_.states()[state];
    const Value mine = out[a.out];
    const Placement& placement = p.out[a.out];
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

  // A result whose terms are on several ranks gets its own State; the total is made later.
  StateId result_state(StateId global, const Placement& p) {
    StateDecl decl = global_.states()[global];
    bool is_partial = context_.options->mesh.degree(MeshAxis::kPp) > 1;
    for (const AxisPlacement& axis : p) is_partial = is_partial || axis.shard == kPartialSum;
    if (!is_partial) return local_.declare_once(decl);
    decl.name += kOwnTerms;
    const StateId part = local_.declare_once(decl);
    const bool is_known =
        std::any_of(partial_results.begin(), partial_results.end(),
                    [&](const Distributor::PartialResult& r) { return r.total == global; });
    if (!is_known) partial_results.push_back({.part = part, .total = global});
    return part;
  }

  const Graph& global_;
  const std::vector<NodePlacement>& placements_;
  Buckets& buckets_;
  const RankContext& context_;
  StateTable& local_;
  Graph g_;
  LocalValues values_;
};

}  // namespace

Distributor::Distributor(StateTable& local, const DistributeOptions& options)
    : local_(local), options_(options), context_(std::make_unique<RankContext>()) {
  *context_ = {
      .options = &options_, .at = options.mesh.coordinates(options.rank), .groups = &groups_};
}

Distributor::~Distributor() = default;

Graph Distributor::localize(const Graph& global) {
  return localize(
      global, decide_placements(global, options_.mesh, options_.model, options_.sequence_parallel));
}

Graph Distributor::localize(const Graph& global, const std::vector<NodePlacement>& placements) {
  const bool is_training = buckets_ == nullptr;
  if (is_training) {
    buckets_ = std::make_unique<Buckets>(lay_out_buckets(global, placements, *context_), local_,
                                         *context_);
  }
  buckets_->begin_graph();
  Localizer localizer(global, placements, *buckets_, *context_, local_);
  localizer.run();
  Graph& g = localizer.graph();
  if (is_training) buckets_->finish(g);
  sum_results(g, global, localizer.partial_results);
  Graph mine = keep_stages(g, *context_);
  if (is_training) {
    if (std::string note = buckets_->copies_note(); !note.empty())
      notes_.push_back(std::move(note));
  }
  if (!is_training) return mine;
  return options_.merge_matmuls && options_.low_precision.merges() ? merge_matmuls(mine, notes_)
                                                                   : mine;
}

void Distributor::sum_results(Graph& g, const Graph& global,
                              const std::vector<PartialResult>& partial) {
  if (partial.empty()) return;
  const CommGroup group = context_->group(kResultAxes);
  for (const PartialResult& result : partial) {
    const LabelScope scope(g, {.phase = Phase::kUpdate, .origin = {.state = result.total.index}});
    StateDecl decl = local_[result.part];
    decl.name = global.states()[result.total].name;
    const Value total = g.apply(AllReduce{.group = group}, {read_final(g, result.part)});
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
  return context_->degree(kNormAxes) == 1 ? CommGroup{} : context_->group(kNormAxes);
}

CommGroup Distributor::norm_copies_group() const {
  const AxisSet replicas{MeshAxis::kDpReplicate};
  const bool has_copies = norm_group().size > 1 && context_->degree(replicas) > 1;
  return has_copies ? context_->group(replicas) : CommGroup{};
}

WeightGroups Distributor::weight_groups() const {
  if (!options_.low_precision) return {};
  const auto group = [&](const AxisSet& axes) {
    return context_->degree(axes) > 1 ? context_->group(axes) : CommGroup{};
  };
  WeightGroups groups{.tp = group({MeshAxis::kTp}), .owners = {}, .replicas = {}};
  if (options_.low_precision.gathers() && context_->degree(kShardAxes) > 1)
    groups.owners = context_->group({MeshAxis::kDpShard, MeshAxis::kCp, MeshAxis::kTp});
  groups.replicas = group(kStageAxes);
  return groups;
}

std::vector<TensorPiece> Distributor::pieces() const {
  return buckets_->pieces();
}

std::vector<UpdateUnit> Distributor::units(Graph& graph) const {
  return buckets_->units(graph);
}

}  // namespace tokamak
