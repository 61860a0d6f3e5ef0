#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "tokamak/graph/rewriter.h"
#include "tokamak/ops/comm/collective.h"
#include "tokamak/ops/float8/fused_float8.h"

namespace tokamak {
namespace {

// One run of an op with readers, in its place; outputs of `node`s that it takes over.
struct Pass {
  FusedFloat8 op;
  std::vector<Value> maxima;    // inputs of readers, values of the old graph
  std::vector<Value> rows;      // by reader: that of a table of delayed scales, if it takes one
  std::vector<int> own_maxima;  // by reader: the reader of the first pass, or -1
  std::vector<std::vector<Value>> is;  // by reader: the old values that it makes
  int32_t reduced_by = -1;             // the node that reduces its one maximum over ranks
};

class Float8Fuser {
 public:
  explicit Float8Fuser(const Graph& graph)
      : graph_(graph), users_(static_cast<size_t>(graph.size())), rewriter_(graph) {
    for (int32_t i = 0; i < graph.size(); ++i)
      for_each_use(graph.node(i), [&](Value v) { users_[v.node].emplace_back(v.out, i); });
    for (const Value v : graph.roots) users_[v.node].emplace_back(v.out, -1);
  }

  Graph run() {
    for (int32_t i = 0; i < graph_.size(); ++i) find(i);
    if (passes_.empty()) return graph_;
    for (int32_t i = 0; i < graph_.size(); ++i) {
      if (gone_.contains(i)) continue;
      const auto at = passes_.find(i);
      if (at == passes_.end()) {
        rewriter_.copy(i);
      } else {
        put(i, at->second);
      }
    }
    return rewriter_.finish();
  }

 private:
  void find(int32_t i) {
    const Node& node = graph_.node(i);
    if (node.is_leaf() || users_[i].empty()) return;
    const AnyOp op{.rules = node.rules, .op = node.op};
    if (quantizes_tiles(op) && find_tiles(i, op)) return;
    if (quantizes_rows(op) && find_rows(i, op)) return;
    if (const int out = output_with_maximum(op); out >= 0) find_maximum(i, op, out);
  }

  // Whether node `j` may run in the place of node `i`.
  bool runs_with(int32_t i, int32_t j) const {
    const Node& a = graph_.node(i);
    const Node& b = graph_.node(j);
    return a.label.phase == b.label.phase && a.label.stage == b.label.stage &&
           a.stream == b.stream && a.when == b.when && b.accumulations.empty() &&
           a.is_clone == b.is_clone && a.is_dropped == b.is_dropped;
  }

  bool is_made_after(int32_t i, Value v) const {
    return v.node > i && !graph_.producer(v).is_leaf();
  }

  bool is_plain_amax(int32_t j) const {
    return graph_.node(j).as<Amax>() != nullptr && graph_.node(j).in.size() == 1;
  }

  // The same, taken for want of a delayed scale.
  bool is_gated_amax(int32_t j) const {
    const auto* amax = graph_.node(j).as<Amax>();
    return amax != nullptr && amax->is_gated && graph_.node(j).in.size() == 2;
  }

  // Returns the users of an output, those of views that show all of it too.
  std::vector<int32_t> users_of_all(int32_t i, int out) const {
    std::vector<int32_t> all;
    for (const auto& [of, j] : users_[i]) {
      if (of != out || j < 0) continue;
      all.push_back(j);
      const Node& user = graph_.node(j);
      if (user.rules->is_view && user.out[0].numel() == graph_.node(i).out[out].numel()) {
        for (const auto& [_, k] : users_[j]) all.push_back(k);
      }
    }
    return all;
  }

  void find_maximum(int32_t i, const AnyOp& op, int out) {
    for (const int32_t j : users_of_all(i, out)) {
      if (j < 0 || !is_plain_amax(j) || !runs_with(i, j)) continue;
      Pass pass{.op = {.first = op,
                       .stores = std::vector<bool>(graph_.node(i).out.size(), true),
                       .readers = {{.of = out, .op = *graph_.node(j).as<Amax>()}}},
                .own_maxima = {-1},
                .is = {{Value{j, 0}}}};
      if (!why_not_fused(pass.op, types_of(graph_.node(i).in)).empty()) continue;
      gone_.insert(j);
      passes_[i] = {std::move(pass)};
      return;
    }
  }

  // Quantizes one output, and stores it only if something else reads it.
  bool find_rows(int32_t i, const AnyOp& op) {
    const Node& node = graph_.node(i);
    if (!node.accumulations.empty()) return false;
    const int y = output_with_maximum(op);
    for (const auto& [out, j] : users_[i]) {
      if (out != y || j < 0 || !runs_with(i, j)) continue;
      const auto* quantize = graph_.node(j).as<Quantize>();
      if (quantize == nullptr) continue;
      if (quantize->is_delayed && find_delayed_rows(i, op, y, j)) return true;
      if (graph_.node(j).in.size() != 1) continue;
      Pass pass{.op = {.first = op,
                       .stores = std::vector<bool>(node.out.size(), true),
                       .readers = {{.of = y, .op = *quantize}}},
                .own_maxima = {-1},
                .is = {{}}};
      for (int32_t k = 0; k < std::ssize(graph_.node(j).out); ++k) pass.is[0].push_back({j, k});
      // Clang 14 captures no structured binding by reference.
      const auto is_other = [y, quantize_node = j](const auto& user) {
        return user.first == y && user.second != quantize_node;
      };
      pass.op.stores[y] = std::any_of(users_[i].begin(), users_[i].end(), is_other);
      if (!why_not_fused(pass.op, types_of(graph_.node(i).in)).empty()) continue;
      gone_.insert(j);
      passes_[i] = {std::move(pass)};
      return true;
    }
    return false;
  }

  // Quantizes one output under a delayed scale. Before them its maximum is taken, for want of
  // one, unless there is that of the node of which this is a clone.
  bool find_delayed_rows(int32_t i, const AnyOp& op, int y, int32_t j) {
    const Node& node = graph_.node(i);
    const Node& quantize = graph_.node(j);
    Pass quantized{
        .op = {.first = op,
               .stores = std::vector<bool>(node.out.size(), true),
               .readers = {{.of = y, .op = *quantize.as<Quantize>(), .takes_maxima = true}}},
        .maxima = {quantize.in[1]},
        .rows = {quantize.in[2]},
        .own_maxima = {-1},
        .is = {{}}};
    for (int32_t k = 0; k < std::ssize(quantize.out); ++k) quantized.is[0].push_back({j, k});
    std::set<int32_t> readers{j};
    std::vector<Pass> passes;
    if (is_made_after(i, quantize.in[1])) {
      std::optional<Pass> maximum = maximum_for(i, op, y, quantize.in[1].node);
      if (!maximum) return false;
      quantized.maxima.clear();
      quantized.own_maxima = {0};
      readers.insert(maximum->is[0][0].node);
      if (maximum->reduced_by >= 0) readers.insert(maximum->reduced_by);
      passes.push_back(std::move(*maximum));
    }
    quantized.op.stores[y] = std::any_of(users_[i].begin(), users_[i].end(), [&](const auto& user) {
      return user.first == y && !readers.contains(user.second);
    });
    if (!why_not_fused(quantized.op, types_of(node.in)).empty()) return false;
    passes.push_back(std::move(quantized));
    gone_.insert(readers.begin(), readers.end());
    passes_[i] = std::move(passes);
    return true;
  }

  // Returns the pass that takes the maximum of output `y` of node `i` that node `j` returns, or
  // reduces over ranks, if the op can.
  std::optional<Pass> maximum_for(int32_t i, const AnyOp& op, int y, int32_t j) const {
    const bool is_reduced = graph_.node(j).as<AllReduce>() != nullptr;
    const int32_t taken = is_reduced ? graph_.node(j).in[0].node : j;
    const Node& amax = graph_.node(taken);
    if (!is_gated_amax(taken) || amax.in[0] != Value{i, y} || !runs_with(i, taken) ||
        !runs_with(i, j) || (is_reduced && users_[taken].size() > 1))
      return std::nullopt;
    Pass pass{.op = {.first = op,
                     .stores = std::vector<bool>(graph_.node(i).out.size(), false),
                     .readers = {{.of = y, .op = *amax.as<Amax>()}}},
              .rows = {amax.in[1]},
              .own_maxima = {-1},
              .is = {{Value{taken, 0}}},
              .reduced_by = is_reduced ? j : -1};
    if (!why_not_fused(pass.op, types_of(graph_.node(i).in)).empty()) return std::nullopt;
    return pass;
  }

  // Whether node `j` takes maxima or quantizes in the place of node `i`.
  bool quantizes_in_place(int32_t i, int32_t j) const {
    if (j < 0 || !runs_with(i, j)) return false;
    return is_plain_amax(j) || is_gated_amax(j) || graph_.node(j).as<Quantize>() != nullptr;
  }

  // Quantizes all outputs, if only quantized values and maxima of them are wanted, or if the op can
  // store what is wanted besides.
  bool find_tiles(int32_t i, const AnyOp& op) {
    const Node& node = graph_.node(i);
    if (!node.accumulations.empty()) return false;
    Pass maxima{.op = {.first = op, .stores = std::vector<bool>(node.out.size(), false)}};
    Pass quantized = maxima;
    std::map<Value, int> made;  // by what was an amax: reader of the first pass
    std::set<int32_t> readers;
    for (const auto& [out, j] : users_[i]) {
      if (!quantizes_in_place(i, j)) {
        if (!stores_beside_tiles(op, out)) return false;
        quantized.op.stores[out] = true;
        continue;
      }
      readers.insert(j);
      if (!is_plain_amax(j) && !is_gated_amax(j)) continue;
      made[{j, 0}] = static_cast<int>(maxima.op.readers.size());
      maxima.op.readers.push_back({.of = out, .op = *graph_.node(j).as<Amax>()});
      maxima.is.push_back({{j, 0}});
      maxima.rows.push_back(is_gated_amax(j) ? graph_.node(j).in[1] : Value{});
    }
    for (const auto& [out, j] : users_[i]) {
      if (!readers.contains(j) || is_plain_amax(j) || is_gated_amax(j)) continue;
      const auto& quantize = *graph_.node(j).as<Quantize>();
      if (!add_quantize(i, out, j, quantize, made, maxima, quantized)) return false;
    }
    if (quantized.op.readers.empty() || !why_not_fused(quantized.op, types_of(node.in)).empty() ||
        (!maxima.op.readers.empty() && !why_not_fused(maxima.op, types_of(node.in)).empty()))
      return false;
    std::vector<Pass> passes;
    if (!maxima.op.readers.empty()) passes.push_back(std::move(maxima));
    passes.push_back(std::move(quantized));
    if (!saves_bytes(i, readers, passes)) return false;
    gone_.insert(readers.begin(), readers.end());
    passes_[i] = std::move(passes);
    return true;
  }

  bool add_quantize(int32_t i, int out, int32_t j, Quantize quantize, std::map<Value, int>& made,
                    Pass& maxima, Pass& quantized) const {
    const Node& node = graph_.node(j);
    // Adds a maximum to the first pass, which takes the place of `is`, and returns its reader.
    const auto take = [&](bool transposed, std::vector<Value> is) {
      maxima.op.readers.push_back(
          {.of = out,
           .op = Amax{
               .grid = quantize.grid, .transposed = transposed, .rounds_to = quantize.rounds_to}});
      maxima.is.push_back(std::move(is));
      maxima.rows.emplace_back();
      return static_cast<int>(maxima.op.readers.size()) - 1;
    };
    const bool takes_own = node.in.size() == 1;
    int own = -1;
    if (takes_own && quantize.grid != ScaleGrid::kSegments) {
      own = take(
          quantize.layout == Quantize::Layout::kTransposed && quantize.grid != ScaleGrid::kTensor,
          {});
      if (quantize.has_amax) {
        const Value columns{j, static_cast<int32_t>(node.out.size()) - 1};
        made[columns] = take(true, {columns});
        quantize.has_amax = false;
      }
    } else if (takes_own) {
      // A tile has all values of a segment.
    } else if (const auto at = made.find(node.in[1]); at != made.end()) {
      own = at->second;
    } else if (is_made_after(i, node.in[1])) {
      return false;
    } else {
      quantized.maxima.push_back(node.in[1]);
    }
    const bool takes_maxima = !takes_own || own >= 0;
    quantized.op.readers.push_back({.of = out, .op = quantize, .takes_maxima = takes_maxima});
    quantized.own_maxima.push_back(own);
    quantized.rows.push_back(quantize.is_delayed ? node.in[2] : Value{});
    std::vector<Value>& is = quantized.is.emplace_back();
    const int num_made = quantize.num_quantized_and_scales() + (quantize.has_amax ? 1 : 0);
    for (int32_t k = 0; k < num_made; ++k) is.push_back({j, k});
    return true;
  }

  Types types_of(const std::vector<Value>& values) const {
    Types types;
    for (const Value v : values) types.push_back(graph_.type(v));
    return types;
  }

  static double bytes_of(const Cost& cost) { return cost.bytes_read + cost.bytes_written; }

  double bytes_of(int32_t i) const {
    const Node& node = graph_.node(i);
    return bytes_of(node.rules->cost(node.op.get(), types_of(node.in), node.out));
  }

  bool saves_bytes(int32_t i, const std::set<int32_t>& readers,
                   const std::vector<Pass>& passes) const {
    double apart = bytes_of(i);
    for (const int32_t j : readers) apart += bytes_of(j);
    double fused = 0.0;
    for (const Pass& pass : passes) {
      Types in = types_of(graph_.node(i).in);
      const Types values = graph_.node(i).out;
      for (size_t r = 0; r < pass.op.readers.size(); ++r) {
        const Float8Reader& reader = pass.op.readers[r];
        if (reader.takes_maxima) {
          const auto& quantize = std::get<Quantize>(reader.op);
          const Amax amax{.grid = quantize.grid,
                          .transposed = quantize.layout == Quantize::Layout::kTransposed};
          const Types of{values[reader.of]};
          in.push_back(amax.infer(of)[0]);
        }
        if (reader.takes_row()) in.push_back(graph_.type(pass.rows[r]));
      }
      fused += bytes_of(pass.op.cost(in, pass.op.infer(in)));
    }
    return fused < apart;
  }

  void put(int32_t i, const std::vector<Pass>& passes) {
    const Node& old = graph_.node(i);
    std::vector<Value> own;  // maxima of the first pass
    for (const Pass& pass : passes) {
      Node node = rewriter_.moved(old);
      auto given = pass.maxima.begin();
      for (size_t r = 0; r < pass.op.readers.size(); ++r) {
        if (pass.op.readers[r].takes_maxima)
          node.in.push_back(pass.own_maxima[r] >= 0 ? own[pass.own_maxima[r]]
                                                    : rewriter_(*given++));
        if (pass.op.readers[r].takes_row()) node.in.push_back(rewriter_(pass.rows[r]));
      }
      Types in;
      for (const Value v : node.in) in.push_back(rewriter_.to.type(v));
      node.rules = &kRules<FusedFloat8>;
      node.op = std::make_shared<const FusedFloat8>(pass.op);
      node.out = pass.op.infer(in);
      const int32_t id = rewriter_.to.append(std::move(node));
      int32_t next = 0;
      for (int32_t k = 0; k < std::ssize(old.out); ++k) {
        if (pass.op.stores[k]) rewriter_.map({i, k}, {id, next++});
      }
      for (size_t r = 0; r < pass.op.readers.size(); ++r) {
        if (std::holds_alternative<Amax>(pass.op.readers[r].op)) own.push_back({id, next});
        const bool has_place = !pass.is[r].empty();
        for (const Value was : pass.is[r]) rewriter_.map(was, {id, next++});
        if (!has_place) ++next;
      }
      if (pass.reduced_by < 0) continue;
      rewriter_.copy(pass.reduced_by);
      own.back() = rewriter_({pass.reduced_by, 0});
    }
  }

  const Graph& graph_;
  std::vector<std::vector<std::pair<int, int32_t>>> users_;  // by node: output and user
  Rewriter rewriter_;
  std::map<int32_t, std::vector<Pass>> passes_;  // by node that they replace
  std::set<int32_t> gone_;
};

}  // namespace

Graph fuse_readers(const Graph& graph) {
  return Float8Fuser(graph).run();
}

}  // namespace tokamak
