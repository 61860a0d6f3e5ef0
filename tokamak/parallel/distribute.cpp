#include "tokamak/parallel/distribute.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "tokamak/core/error.h"
#include "tokamak/ops/accumulate.h"
#include "tokamak/ops/add.h"
#include "tokamak/ops/attention.h"
#include "tokamak/ops/collective.h"
#include "tokamak/ops/linear.h"
#include "tokamak/ops/lm_head_loss.h"
#include "tokamak/ops/pack.h"
#include "tokamak/parallel/buckets.h"
#include "tokamak/parallel/merge_products.h"
#include "tokamak/parallel/reshard.h"
#include "tokamak/parallel/stages.h"
#include "tokamak/parallel/tensor_ring.h"

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

// Of gathers for the backward, beside its products.
constexpr int kGatherAgainStream = 1002;

// Of the first input's rows: what may run by chunks of them.
bool is_product(const Node& n) {
  return n.as<Linear>() != nullptr || n.as<LinearGradInput>() != nullptr;
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
        g_(local) {
    if (context.options->async_tp && context.degree({MeshAxis::kTp}) > 1) find_users();
  }

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
    bool is_for_backward = false;
  };

  // A node that has not been emitted, with its local inputs; those of a sum are deferred too.
  struct Deferred {
    AnyOp op;
    std::vector<Value> in;
  };

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
    return p.shard.is_cut() ? (*p.ranges)[static_cast<size_t>(
                                  context_.index_in(mesh_axes(static_cast<PlacementAxis>(axis))))]
                            : Range{};
  }

  // Cuts nest in the order of the axes; a dim that several axes cut is cut evenly.
  TensorType local_type(const TensorType& whole, const Placement& p) const {
    TensorType type = whole;
    for (size_t a = 0; a < kNumPlacementAxes; ++a) {
      if (!p[a].shard.is_cut()) continue;
      const int dim = p[a].shard.dim;
      const auto d = static_cast<size_t>(dim);
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
    if (deferred_.contains(v)) settle(v, want);
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
      if (l.is_for_backward && g_.label.phase == Phase::kForward) continue;
      if (l.placement == want && (l.stage == stage || l.stage < 0 || !is_resharded(have, l)))
        return l.value;
      if (l.stage != stage && is_resharded(have, l)) continue;
      const double cost = distance(l.placement, want);
      if (cost < least) {
        least = cost;
        from = &l;
      }
    }
    TOK_CHECK(from != nullptr, "{}: no way to reshard",
              is_leaf ? "state" : global_.producer(v).rules->name);
    if (from->stage >= 0 && from->stage != stage && is_scattered(from->placement, want)) {
      sum_before_it_crosses(v, want, have);
      return have.front().value;
    }
    const Local now = resharded(v, *from, want, stage);
    // Before the other, so that the backward finds it first.
    if (gathers_again(*from, want)) have.push_back(gathered_again(v, *from, want, stage));
    have.push_back(now);
    return now.value;
  }

  // Whether the backward has a gather of its own in place of one that is emitted now.
  bool gathers_again(const Local& from, const Placement& want) const {
    constexpr auto kTp = static_cast<size_t>(PlacementAxis::kTp);
    return context_.options->gather_again && g_.label.phase == Phase::kForward &&
           g_.label.block >= 0 && from.placement[kTp].shard.is_cut() &&
           want[kTp].shard == kReplicated;
  }

  Local gathered_again(Value v, const Local& from, const Placement& want, int stage) {
    const int32_t first = g_.size();
    Local again = resharded(v, from, want, stage, GroupPurpose::kAgain);
    again.is_for_backward = true;
    for (int32_t i = first; i < g_.size(); ++i) {
      Node& node = g_.mutable_node(i);
      node.is_dropped = true;
      if (node.rules->is_communication) node.stream = kGatherAgainStream;
    }
    return again;
  }

  // `purpose`: of the groups that communicate.
  Local resharded(Value v, Local from, const Placement& want, int stage,
                  GroupPurpose purpose = GroupPurpose::kGeneral) {
    from.stage = stage;
    for (size_t a = 0; a < kNumPlacementAxes; ++a) {
      if (from.placement[a] == want[a]) continue;
      from.value = reshard(g_, from.value, group_of(a, purpose), from.placement[a], want[a],
                           global_.type(v));
      from.placement[a] = want[a];
    }
    return from;
  }

  static bool is_scattered(const Placement& from, const Placement& to) {
    for (size_t a = 0; a < kNumPlacementAxes; ++a) {
      if (from[a].shard == kPartialSum && to[a].shard.is_cut()) return true;
    }
    return false;
  }

  // A pending sum is a message as large as the whole value; its cut sum takes its place.
  void sum_before_it_crosses(Value v, const Placement& want, std::vector<Local>& have) {
    Local& itself = have.front();
    for (Local& l : have) {
      if (l.stage != itself.stage || !(l.placement == want)) continue;
      std::swap(itself, l);
      return;
    }
    const LabelScope scope(g_, label_of(global_.producer(v)));
    itself = resharded(v, itself, want, itself.stage);
  }

  // The first entry is the value itself, which may cross stages; reshards belong to theirs.
  static bool is_resharded(const std::vector<Local>& have, const Local& l) {
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

  CommGroup group_of(size_t axis, GroupPurpose purpose = GroupPurpose::kGeneral) const {
    TOK_CHECK(static_cast<PlacementAxis>(axis) != PlacementAxis::kDp, "activations move over dp");
    return context_.group({mesh_axis(axis)}, purpose);
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

  Label label_of(const Node& n) const {
    Label label = n.label;
    label.stage = context_.stage_of(label.module);
    return label;
  }

  Value input(int32_t i, size_t k) {
    const Value v = global_.node(i).in[k];
    const int stage = context_.stage_of(global_.node(i).label.module);
    return is_weight(v) ? buckets_.weight(g_, state_of_weight(v), stage)
                        : get(v, placements_[static_cast<size_t>(i)].in[k], stage);
  }

  void emit(int32_t i) {
    if (emitted_.contains(i)) return;
    const Node& n = global_.node(i);
    const LabelScope scope(g_, label_of(n));
    if (defers(i)) {
      defer(i);
      return;
    }
    if (const auto ring = gather_ring(i)) {
      emit_gathered(i, *ring);
      return;
    }
    std::vector<Value> in;
    for (size_t k = 0; k < n.in.size(); ++k) in.push_back(input(i, k));
    const AnyOp op = localized(n, placements_[static_cast<size_t>(i)]);
    made(i, g_.add_node(op.rules, op.op, in));
  }

  // What node `i` has become.
  void made(int32_t i, const std::vector<Value>& out) {
    const Node& n = global_.node(i);
    const NodePlacement& p = placements_[static_cast<size_t>(i)];
    for (size_t k = 0; k < out.size(); ++k) {
      TOK_CHECK(g_.type(out[k]) == local_type(n.out[k], p.out[k]), "{}: output {} is {}, wanted {}",
                n.rules->name, k, to_string(g_.type(out[k])),
                to_string(local_type(n.out[k], p.out[k])));
      values_[{i, static_cast<int32_t>(k)}].push_back(
          {.placement = p.out[k], .stage = g_.label.stage, .value = out[k]});
    }
    for (const Accumulation& a : n.accumulations) accumulate(n, a, p, out, g_.label.stage);
  }

  void find_users() {
    for (int32_t i = 0; i < global_.size(); ++i)
      for_each_use(global_.node(i), [&](Value v) { users_[v].push_back(i); });
  }

  // The ring between a value's rows, cut over tp, and `other`, which is whole or partial over tp
  // and else alike; none where the chunks are not rows of one size.
  std::optional<TensorRing> ring_between(const Placement& cut, const Placement& other,
                                         const TensorType& whole) const {
    const auto tp = static_cast<size_t>(PlacementAxis::kTp);
    for (size_t a = 0; a < kNumPlacementAxes; ++a) {
      if (a != tp && !(cut[a] == other[a])) return std::nullopt;
    }
    const Shard shard = cut[tp].shard;
    if (!shard.is_cut() || shard.dim + 1 == std::ssize(whole.dims)) return std::nullopt;
    const Ranges& ranges = *cut[tp].ranges;
    for (const Range& r : ranges) {
      if (r.size() != ranges[0].size()) return std::nullopt;
    }
    return TensorRing{.group = context_.group({MeshAxis::kTp}, GroupPurpose::kRing),
                      .dim = shard.dim,
                      .chunk = local_type(whole, cut).dims[static_cast<size_t>(shard.dim)]};
  }

  // Where node `i` is a product over a gathered input that has not been gathered yet.
  std::optional<TensorRing> gather_ring(int32_t i) const {
    const Node& n = global_.node(i);
    if (users_.empty() || !is_product(n)) return std::nullopt;
    const Value x = n.in[0];
    const auto have = values_.find(x);
    const Placement& want = placements_[static_cast<size_t>(i)].in[0];
    if (have == values_.end() || have->second.empty() ||
        want[static_cast<size_t>(PlacementAxis::kTp)].shard != kReplicated)
      return std::nullopt;
    for (const Local& l : have->second) {
      if (l.placement == want) return std::nullopt;
    }
    return ring_between(have->second.front().placement, want, global_.type(x));
  }

  // Node `i` and those after it that apply weights to the same gathered input: they share a ring.
  std::vector<int32_t> sharers(int32_t i) const {
    const Node& n = global_.node(i);
    const Placement& want = placements_[static_cast<size_t>(i)].in[0];
    std::vector<int32_t> all{i};
    for (const int32_t j : users_.at(n.in[0])) {
      const Node& other = global_.node(j);
      const bool is_like = j > i && other.rules == n.rules && other.label == n.label &&
                           placements_[static_cast<size_t>(j)].in[0] == want;
      if (is_like &&
          std::all_of(other.in.begin() + 1, other.in.end(), [&](Value v) { return is_weight(v); }))
        all.push_back(j);
    }
    return all;
  }

  // Multiplies each chunk as it arrives.
  void emit_gathered(int32_t i, const TensorRing& ring) {
    struct Product {
      int32_t node = 0;
      AnyOp op;
      std::vector<Value> in;
      std::vector<Value> chunks;
    };

    std::vector<Product> products;
    for (const int32_t j : sharers(i)) {
      const Node& n = global_.node(j);
      Product p{
          .node = j, .op = localized(n, placements_[static_cast<size_t>(j)]), .in = {Value{}}};
      for (size_t k = 1; k < n.in.size(); ++k) p.in.push_back(input(j, k));
      products.push_back(std::move(p));
      emitted_.insert(j);
    }
    const Value x = global_.node(i).in[0];
    std::vector<Local>& have = values_[x];
    const Placement& whole = placements_[static_cast<size_t>(i)].in[0];
    const Local mine = have.front();
    const auto parts = ring_gather(g_, ring, mine.value, [&](Value chunk) {
      for (Product& p : products) {
        p.in[0] = chunk;
        p.chunks.push_back(g_.add_node(p.op.rules, p.op.op, p.in)[0]);
      }
    });
    // For who comes later, such as weight gradients.
    if (gathers_again(mine, whole)) have.push_back(gathered_again(x, mine, whole, g_.label.stage));
    have.push_back({.placement = whole,
                    .stage = g_.label.stage,
                    .value = g_.apply(ConcatDim{.dim = ring.dim}, parts)});
    for (const Product& p : products)
      made(p.node, {g_.apply(ConcatDim{.dim = ring.dim}, by_rank(ring, p.chunks))});
  }

  // Whether node `i` waits for its first user to say if its partial sums are scattered: products,
  // and sums of them alone.
  bool defers(int32_t i) const {
    const Node& n = global_.node(i);
    const NodePlacement& p = placements_[static_cast<size_t>(i)];
    const auto users = users_.find({i, 0});
    if (users == users_.end() || n.out.size() != 1 || !n.accumulations.empty() ||
        p.out[0][static_cast<size_t>(PlacementAxis::kTp)].shard != kPartialSum)
      return false;
    const Label& user = global_.node(users->second.front()).label;
    if (user.phase != n.label.phase || user.module != n.label.module) return false;
    if (is_product(n)) return true;
    return n.as<Add>() != nullptr && std::all_of(n.in.begin(), n.in.end(), [&](Value v) {
             return deferred_.contains(v) && users_.at(v).size() == 1;
           });
  }

  void defer(int32_t i) {
    const Node& n = global_.node(i);
    Deferred d{.op = localized(n, placements_[static_cast<size_t>(i)])};
    for (size_t k = 0; is_product(n) && k < n.in.size(); ++k) d.in.push_back(input(i, k));
    deferred_[{i, 0}] = std::move(d);
  }

  // Makes a deferred value: in chunks on a ring if it is wanted cut, else whole.
  void settle(Value v, const Placement& want) {
    const Node& n = global_.producer(v);
    const Placement& partial = placements_[static_cast<size_t>(v.node)].out[0];
    const LabelScope scope(g_, label_of(n));
    Local local{.placement = partial, .stage = g_.label.stage};
    if (const auto ring = ring_between(want, partial, global_.type(v))) {
      local.placement = want;
      local.value = ring_reduce_scatter(g_, *ring, [&](int64_t begin, int64_t end) {
        return emit_rows(v, SliceDim{.dim = ring->dim, .begin = begin, .end = end});
      });
    } else {
      local.value = emit_rows(v, std::nullopt);
    }
    deferred_.erase(v);
    values_[v].push_back(local);
  }

  // Some rows of a deferred value; all without `rows`.
  Value emit_rows(Value v, const std::optional<SliceDim>& rows) {
    const Deferred& d = deferred_.at(v);
    std::vector<Value> in = d.in;
    if (in.empty()) {
      for (const Value term : global_.producer(v).in) in.push_back(emit_rows(term, rows));
    } else if (rows) {
      in[0] = g_.apply(*rows, {in[0]});
    }
    return g_.add_node(d.op.rules, d.op.op, in)[0];
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
  // For async_tp:
  std::map<Value, std::vector<int32_t>> users_;  // in order; empty without it
  std::map<Value, Deferred> deferred_;
  std::set<int32_t> emitted_;  // ahead of their turn
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
  sum_results(g, localizer.partial_results);
  Graph mine = keep_stages(g, *context_);
  if (is_training) {
    if (std::string note = buckets_->copies_note(); !note.empty())
      notes_.push_back(std::move(note));
  }
  if (is_training && options_.merge_products) return merge_products(mine, notes_);
  return mine;
}

void Distributor::sum_results(Graph& g,
                              const std::vector<std::pair<StateId, std::string>>& partial) {
  if (partial.empty()) return;
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
  constexpr AxisSet kAxes{MeshAxis::kPp, MeshAxis::kDpShard, MeshAxis::kCp, MeshAxis::kTp};
  return context_->degree(kAxes) == 1 ? CommGroup{} : context_->group(kAxes);
}

std::vector<TensorPiece> Distributor::pieces() const {
  return buckets_->pieces();
}

std::vector<UpdateUnit> Distributor::units(Graph& graph) const {
  return buckets_->units(graph);
}

}  // namespace tokamak
