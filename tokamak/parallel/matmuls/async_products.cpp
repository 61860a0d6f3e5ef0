#include "tokamak/parallel/matmuls/async_products.h"

#include <algorithm>

#include "tokamak/ops/elementwise/add.h"
#include "tokamak/ops/matmul/linear.h"

namespace tokamak {
namespace {

constexpr auto kTp = static_cast<size_t>(PlacementAxis::kTp);

}  // namespace

bool is_product(const Node& n) {
  return n.as<Linear>() != nullptr || n.as<LinearGradInput>() != nullptr;
}

AsyncProducts::AsyncProducts(const Graph& global, const std::vector<NodePlacement>& placements,
                             const RankContext& context, LocalValues& values, Graph& local)
    : global_(global), placements_(placements), context_(context), values_(values), g_(local) {
  if (!context.options->async_tp || context.degree({MeshAxis::kTp}) == 1) return;
  for (int32_t i = 0; i < global.size(); ++i)
    for_each_use(global.node(i), [&](Value v) { users_[v].push_back(i); });
}

std::optional<AsyncProducts::Gathered> AsyncProducts::gathered(int32_t i) const {
  const Node& n = global_.node(i);
  if (users_.empty() || !is_product(n)) return std::nullopt;
  const Value x = n.in[0];
  const std::vector<LocalValue>* have = values_.find(x);
  const Placement& want = placements_[i].in[0];
  if (have == nullptr || want[kTp].shard != kReplicated) return std::nullopt;
  for (const LocalValue& l : *have) {
    if (l.placement == want) return std::nullopt;
  }
  const auto ring = ring_between(have->front().placement, want, global_.type(x));
  if (!ring) return std::nullopt;
  Gathered found{.ring = *ring, .nodes = {i}};
  for (const int32_t j : users_.at(x)) {
    const Node& other = global_.node(j);
    const bool is_like =
        j > i && other.rules == n.rules && other.label == n.label && placements_[j].in[0] == want;
    if (is_like && std::all_of(other.in.begin() + 1, other.in.end(),
                               [&](Value v) { return is_weight(global_, v); }))
      found.nodes.push_back(j);
  }
  return found;
}

std::vector<Value> AsyncProducts::multiply(const Gathered& gathered,
                                           std::vector<LocalOp> products) {
  const int32_t first = gathered.nodes.front();
  const Value x = global_.node(first).in[0];
  const Placement& whole = placements_[first].in[0];
  const LocalValue mine = values_.find(x)->front();
  std::vector<std::vector<Value>> chunks(products.size());
  const auto parts = ring_gather(g_, gathered.ring, mine.value, [&](Value chunk) {
    for (size_t k = 0; k < products.size(); ++k) {
      LocalOp& p = products[k];
      p.in[0] = chunk;
      chunks[k].push_back(g_.add_node(p.op.rules, p.op.op, p.in)[0]);
    }
  });
  const ConcatDim concat{.dim = gathered.ring.dim};
  // Later readers, such as weight gradients, use the whole input.
  values_.gather_again(x, mine, whole, g_.label.stage);
  values_.add(x, {.placement = whole, .stage = g_.label.stage, .value = g_.apply(concat, parts)});
  std::vector<Value> made;
  made.reserve(chunks.size());
  for (const auto& of_product : chunks)
    made.push_back(g_.apply(concat, by_rank(gathered.ring, of_product)));
  return made;
}

bool AsyncProducts::defers(int32_t i) const {
  const Node& n = global_.node(i);
  const NodePlacement& p = placements_[i];
  const auto users = users_.find({i, 0});
  if (users == users_.end() || n.out.size() != 1 || !n.accumulations.empty() ||
      p.out[0][kTp].shard != kPartialSum)
    return false;
  const Label& user = global_.node(users->second.front()).label;
  if (user.phase != n.label.phase || user.module != n.label.module) return false;
  if (is_product(n)) return true;
  return n.as<Add>() != nullptr && std::all_of(n.in.begin(), n.in.end(), [&](Value v) {
           return deferred_.contains(v) && users_.at(v).size() == 1;
         });
}

void AsyncProducts::settle(Value v, const Placement& want) {
  const Placement& partial = placements_[v.node].out[0];
  const LabelScope scope(g_, context_.label_of(global_, v.node));
  LocalValue local{.placement = partial, .stage = g_.label.stage, .value = {}};
  if (const auto ring = ring_between(want, partial, global_.type(v))) {
    local.placement = want;
    local.value = ring_reduce_scatter(g_, *ring, [&](int64_t begin, int64_t end) {
      return emit_rows(v, SliceDim{.dim = ring->dim, .begin = begin, .end = end});
    });
  } else {
    local.value = emit_rows(v, std::nullopt);
  }
  deferred_.erase(v);
  values_.add(v, local);
}

// Returns the ring between a value's rows, cut over tp, and `other`, which is whole or partial over
// tp and otherwise alike; nothing if the chunks are not rows of one size.
std::optional<TensorRing> AsyncProducts::ring_between(const Placement& cut, const Placement& other,
                                                      const TensorType& whole) const {
  for (size_t a = 0; a < kNumPlacementAxes; ++a) {
    if (a != kTp && !(cut[a] == other[a])) return std::nullopt;
  }
  const Shard shard = cut[kTp].shard;
  if (!shard.is_cut() || shard.dim + 1 == std::ssize(whole.dims)) return std::nullopt;
  const Ranges& ranges = *cut[kTp].ranges;
  for (const Range& r : ranges) {
    if (r.size() != ranges[0].size()) return std::nullopt;
  }
  return TensorRing{.group = context_.group({MeshAxis::kTp}, GroupPurpose::kRing),
                    .dim = shard.dim,
                    .chunk = values_.local_type(whole, cut).dims[shard.dim]};
}

// Emits some rows of a deferred value; all without `rows`.
Value AsyncProducts::emit_rows(Value v, const std::optional<SliceDim>& rows) {
  const LocalOp& d = deferred_.at(v);
  std::vector<Value> in = d.in;
  if (in.empty()) {
    for (const Value term : global_.producer(v).in) in.push_back(emit_rows(term, rows));
  } else if (rows) {
    in[0] = g_.apply(*rows, {in[0]});
  }
  return g_.add_node(d.op.rules, d.op.op, in)[0];
}

}  // namespace tokamak
