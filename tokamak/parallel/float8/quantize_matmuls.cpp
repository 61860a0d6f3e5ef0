#include "tokamak/parallel/float8/quantize_matmuls.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "tokamak/graph/passes.h"
#include "tokamak/graph/rewriter.h"
#include "tokamak/ops/comm/collective.h"
#include "tokamak/ops/elementwise/cast.h"
#include "tokamak/ops/float8/quantize.h"
#include "tokamak/ops/float8/scaled_matmul.h"
#include "tokamak/ops/float8/transpose_quantized.h"
#include "tokamak/ops/layout/reshape.h"
#include "tokamak/ops/matmul/linear.h"
#include "tokamak/ops/optimizer/grad_norm.h"
#include "tokamak/parallel/float8/float8_table.h"
#include "tokamak/parallel/float8/mark_float8.h"
#include "tokamak/parallel/float8/quantized_collectives.h"
#include "tokamak/parallel/float8/quantized_gathers.h"
#include "tokamak/parallel/float8/shared_scales.h"

namespace tokamak {
namespace {

bool is_of_head(const Label& label) {
  return label.block < 0;
}

using QuantizeLayout = Quantize::Layout;

class Quantizer {
 public:
  Quantizer(Graph graph, const Float8Recipe& recipe, const WeightGroups& groups, bool has_scales)
      : graph_(std::move(graph)),
        recipe_(recipe),
        groups_(groups),
        rewriter_(graph_),
        to_(rewriter_.to),
        weights_of_(find_shared_scales(graph_, recipe)),
        table_(graph_, recipe, has_scales),
        gathers_(graph_, recipe, weights_of_, groups.owners, table_, rewriter_) {
    require_float8_dims(graph_, recipe);
    find_weights_of_backward();
    find_carriers();
  }

  Graph run() {
    for (int32_t i = 0; i < graph_.size(); ++i) {
      if (const auto last = gradients_.waiting.find(i); last != gradients_.waiting.end()) {
        for (const int32_t j : last->second) put(j);
      }
      if (!gradients_.waits.contains(i)) put(i);
    }
    if (table_.has_update()) table_.finish(to_, factor_);
    return rewriter_.finish();
  }

 private:
  void find_weights_of_backward() {
    for (int32_t i = 0; i < graph_.size(); ++i) {
      const Node& n = graph_.node(i);
      if (is_marked<LinearGradWeight>(n) && recipe_.has_dw && recipe_.of_dw == ScaleGrid::kRows &&
          !is_of_head(n.label))
        wants_columns_.insert({n.in[0], n.in[1]});
      if (!is_marked<LinearGradInput>(n)) continue;
      differentiated_.insert(n.in[1]);
      if (!weights_of_.contains(n.in[1]) && is_made_once(n.in[1]))
        of_backward_.emplace(n.in[1], n.as<LinearGradInput>()->module);
    }
  }

  // Gradients that share scales have these on one rank, so they do not travel quantized.
  void find_carriers() {
    carriers_ = find_quantized_collectives(graph_, recipe_, groups_.tp);
    gradients_ = find_shared_gradients(graph_, weights_of_, recipe_);
    std::set<Value> stay;
    for (const auto& [i, quantized] : carriers_) {
      const Value origin = graph_.node(i).in[0];
      const bool is_shared =
          gradients_.all_of.contains({i, 0}) || gradients_.all_of.contains(origin);
      (is_shared ? stay : spread_).insert(origin);
    }
    std::erase_if(carriers_,
                  [&](const auto& c) { return stay.contains(graph_.node(c.first).in[0]); });
  }

  // Gathers quantized values in place of the values that node `i` gathers.
  void put_carrier(int32_t i) {
    const Node& n = graph_.node(i);
    const QuantizedCollective& quantized = carriers_.at(i);
    module_ = quantized.module;
    is_forward_matmul_ = n.label.phase != Phase::kBackward;
    const QuantizedValues mine =
        quantized_of(n.in[0], ScaleGrid::kTensor, QuantizeLayout::kRows, quantized.role);
    const Value moved = to_.add_node(n.rules, n.op, {mine.values})[0];
    Node& made = to_.mutable_node(moved.node);
    made.is_dropped = n.is_dropped;
    made.stream = n.stream;
    made.when = n.when;
    quantized_[{{i, 0}, ScaleGrid::kTensor, false}] = {.values = moved, .inverse = mine.inverse};
  }

  void put(int32_t i) {
    const Node& n = graph_.node(i);
    if (n.is_leaf()) return rewriter_.copy(i);
    const LabelScope scope(to_, n.label);
    table_.end_forward(to_, n.label);
    if (is_marked<Linear>(n)) return put_matmul(i);
    if (is_marked<LinearGradInput>(n)) return put_grad_input(i);
    if (is_marked<LinearGradWeight>(n) && recipe_.has_dw) return put_grad_weight(i);
    if (gathers_.replaces(i)) return gathers_.put(i);
    if (carriers_.contains(i)) return put_carrier(i);
    rewriter_.copy(i);
    if (n.as<ClipFactor>() != nullptr) factor_ = rewriter_({i, 1});
    if (n.as<SumSquares>() != nullptr && table_.has_update() && !has_maxima_) {
      rewriter_.map({i, 0}, table_.take_maxima(to_, rewriter_({i, 0}), groups_.replicas));
      has_maxima_ = true;
    }
    if (const auto w = of_backward_.find({i, 0}); w != of_backward_.end())
      quantize_for_backward(w->first, w->second);
  }

  // A weight that only the backward merges is quantized as soon as its parts are, so that what was
  // gathered for it can be freed with them.
  void quantize_for_backward(Value w, const std::string& module) {
    module_ = module;
    is_forward_matmul_ = false;
    quantized_weight(w, recipe_.w_of_dx, !recipe_.has_one_weight() || keeps_both_layouts(w));
  }

  void put_matmul(int32_t i) {
    const Node& n = graph_.node(i);
    module_ = n.as<Linear>()->module;
    is_forward_matmul_ = true;
    const QuantizedValues x =
        quantized_of(n.in[0], recipe_.x_of_y, QuantizeLayout::kRows, Float8Role::kX);
    const QuantizedValues w = quantized_weight(n.in[1], recipe_.w_of_y, false);
    if (quantizes_for_dx_early(n)) quantized_weight(n.in[1], recipe_.w_of_dx, true);
    std::vector<Value> in{x.values, x.inverse, w.values, w.inverse};
    if (n.in.size() == 3 && n.as<Linear>()->adds_bias) in.push_back(rewriter_(n.in[2]));
    multiply(i, recipe_.x_of_y, recipe_.w_of_y, recipe_.fast_y, in);
  }

  // Whether the quantized dx are made with those of y, so that a gathered weight is freed: before
  // there are logits, and before the next weight that stays for a whole step is gathered.
  bool quantizes_for_dx_early(const Node& matmul) const {
    const Value w = matmul.in[1];
    return differentiated_.contains(w) &&
           (is_of_head(matmul.label) || keeps_both_layouts(w) ||
            (is_made_once(w) && !recipe_.has_one_weight() && !stays(source_of(w).first)));
  }

  void put_grad_input(int32_t i) {
    const Node& n = graph_.node(i);
    const bool both = recipe_.has_dw && recipe_.makes_both_at_once() && !is_of_head(n.label);
    module_ = n.as<LinearGradInput>()->module;
    is_forward_matmul_ = false;
    const QuantizedValues g =
        quantized_of(n.in[0], recipe_.g_of_dx, both ? QuantizeLayout::kBoth : QuantizeLayout::kRows,
                     Float8Role::kG);
    const QuantizedValues w = quantized_weight(n.in[1], recipe_.w_of_dx, true);
    multiply(i, recipe_.g_of_dx, recipe_.w_of_dx, recipe_.fast_dx,
             {g.values, g.inverse, w.values, w.inverse});
  }

  void put_grad_weight(int32_t i) {
    const Node& n = graph_.node(i);
    module_ = n.as<LinearGradWeight>()->module;
    is_forward_matmul_ = false;
    const QuantizedValues g =
        is_of_head(n.label)
            ? gradient_of_logits(n.in[1])
            : quantized_of(n.in[1], recipe_.of_dw, QuantizeLayout::kTransposed, Float8Role::kG);
    const QuantizedValues x =
        quantized_of(n.in[0], recipe_.of_dw, QuantizeLayout::kTransposed, Float8Role::kX);
    multiply(i, recipe_.of_dw, recipe_.of_dw, recipe_.fast_dw,
             {g.values, g.inverse, x.values, x.inverse});
  }

  // Logits take so much memory that only one layout of their gradient's quantized values is made
  // beside them.
  QuantizedValues gradient_of_logits(Value v) {
    if (!recipe_.has_one_gradient() || graph_.type(v).dims[0] % 16 != 0)
      return quantized_of(v, recipe_.of_dw, QuantizeLayout::kTransposed, Float8Role::kG);
    quantized_of(v, ScaleGrid::kTensor, QuantizeLayout::kRows, Float8Role::kG);
    return transposed_rows(v);
  }

  // Transposes quantized values that there are. REQUIRES: a multiple of 16 rows.
  QuantizedValues transposed_rows(Value v) {
    const QuantizedValues rows = quantized_.at({v, ScaleGrid::kTensor, false});
    const Reshape matrix{.dims = {-1, graph_.type(v).dims.back()}};
    return {.values = to_.apply(TransposeQuantized{}, {to_.apply(matrix, {rows.values})}),
            .inverse = rows.inverse};
  }

  // Multiplies quantized values in place of node `i`, and adds to what it adds to.
  void multiply(int32_t i, ScaleGrid a, ScaleGrid b, bool fast, std::vector<Value> in) {
    const Node& old = graph_.node(i);
    const ScaledMatmul op{.out = old.out[0].dtype,
                          .a_grid = a,
                          .b_grid = b,
                          .fast_accumulation = fast,
                          .product = *node_cost(graph_, old).product,
                          .emulate = recipe_.emulate};
    const Value c = to_.apply(op, std::move(in));
    Node& made = to_.mutable_node(c.node);
    made.accumulations = old.accumulations;
    for (Accumulation& added : made.accumulations) added.into = rewriter_(added.into);
    made.when = old.when;
    made.stream = old.stream;
    made.is_dropped = old.is_dropped;
    rewriter_.map({i, 0}, c);
  }

  // Returns the quantized values of an activation or an output gradient.
  QuantizedValues quantized_of(Value v, ScaleGrid grid, QuantizeLayout layout, Float8Role role) {
    const bool transposed = layout == QuantizeLayout::kTransposed;
    if (const auto made = quantized_.find({v, grid, transposed}); made != quantized_.end())
      return made->second;
    if (carriers_.contains(v.node)) return quantized_[{v, grid, true}] = transposed_rows(v);
    const DType format = role == Float8Role::kG ? recipe_.gradient : DType::kE4M3;
    Quantize op{.format = format, .grid = grid, .layout = layout};
    // Scales of a whole tensor, or of whole rows of the joint output gradient, cover all its parts.
    std::vector<Value> members{v};
    const bool is_of_all = grid == ScaleGrid::kTensor || (grid == ScaleGrid::kRows && !transposed);
    if (const auto all = gradients_.all_of.find(v); all != gradients_.all_of.end() && is_of_all)
      members = all->second;
    Value amax;
    if (!op.takes_maxima() || members.size() > 1) {
      amax = amax_of_all({.grid = grid, .transposed = transposed && grid != ScaleGrid::kTensor},
                         members, role, [&](Value m) { return rewriter_(m); });
    }
    if (spread_.contains(v)) amax = over_tp(amax, role);
    op.has_amax = wants_columns_.contains(v) && grid == ScaleGrid::kRows && !transposed &&
                  !amax.valid() && !amax_.contains({v, grid, true});
    return quantize(v, rewriter_(v), amax, op, role);
  }

  template <class Source>
  Value amax_of_all(Amax op, const std::vector<Value>& members, Float8Role role,
                    const Source& source) {
    if (table_.has_scales()) return table_.no_maxima(to_, 1);
    Value& made = amax_[{members[0], op.grid, op.transposed}];
    if (made.valid()) return made;
    op.is_gated = is_delayed();
    Value amax;
    for (const Value m : members) {
      std::vector<Value> in{source(m)};
      if (amax.valid()) in.push_back(amax);
      if (op.is_gated) in.push_back(table_.row(to_, module_, role));
      amax = to_.apply(op, std::move(in));
    }
    return made = amax;
  }

  QuantizedValues quantize(Value key, Value x, Value amax, Quantize op, Float8Role role) {
    op.power_of_two = recipe_.power_of_two;
    op.rounds_up = recipe_.rounds_up;
    std::vector<Value> in{x};
    if (amax.valid()) in.push_back(amax);
    if (is_delayed()) {
      op.is_delayed = true;
      op.has_amax = keeps_maximum(role) && staged_.insert(key).second;
      in.push_back(table_.row(to_, module_, role));
    }
    const std::vector<Value> out = to_.add(op, std::move(in));
    if (op.is_delayed && op.has_amax) table_.stage(to_, module_, role, out.back());
    if (!op.is_delayed && op.has_amax) amax_[{key, op.grid, true}] = out.back();
    if (op.layout != QuantizeLayout::kTransposed)
      quantized_[{key, op.grid, false}] = {.values = out[0], .inverse = out[op.inverse_output()]};
    if (op.layout != QuantizeLayout::kRows)
      quantized_[{key, op.grid, true}] = {.values = out[op.inverse_output() - 1],
                                          .inverse = out[op.inverse_output(true)]};
    return quantized_[{key, op.grid, op.layout == QuantizeLayout::kTransposed}];
  }

  // The backward may have x and w in other parts than the forward, which has kept their maxima.
  bool keeps_maximum(Float8Role role) const {
    return table_.has_update() && (role == Float8Role::kG || is_forward_matmul_);
  }

  bool is_delayed() const { return recipe_.is_delayed(); }

  bool is_made_once(Value w) const {
    return graph_.producer(w).is_leaf() || graph_.producer(w).label.phase == Phase::kUnshard;
  }

  // Whether a value lies in a State, where it is until the step's update.
  bool stays(Value v) const {
    const Node& n = graph_.producer(v);
    return n.is_leaf() || (n.rules->is_view && stays(n.in[0]));
  }

  // A tied head lies in memory in the compute dtype as well.
  bool is_made_for_each_loss(Value w) const {
    return is_of_head(to_.label) && is_read_as_values(graph_, w);
  }

  // Returns what a weight is quantized from, and the dtype that it is rounded to first: a master
  // whose cast no other node needs, or the value itself.
  std::pair<Value, DType> source_of(Value w) const {
    const Node& n = graph_.producer(w);
    if (n.as<Cast>() == nullptr || n.label.phase != Phase::kUnshard ||
        graph_.type(n.in[0]).dtype != DType::kF32)
      return {w, DType::kF32};
    return {n.in[0], recipe_.from_master ? DType::kF32 : n.out[0].dtype};
  }

  // A weight that only the backward merges has the scale of its parts, the first of which lies
  // where it begins.
  std::vector<Value> sharing_scale_of(Value w) const {
    if (const auto all = weights_of_.find(w); all != weights_of_.end()) return all->second;
    const auto place = place_in_bucket(graph_, w);
    const auto part =
        std::find_if(weights_of_.begin(), weights_of_.end(), [&](const auto& forward) {
          return place && place_in_bucket(graph_, forward.first) == place;
        });
    return part != weights_of_.end() ? part->second : std::vector{w};
  }

  // Whether both layouts of a weight's quantized values stay from the first microbatch to the last.
  bool keeps_both_layouts(Value w) const {
    return recipe_.keeps_transposed && is_made_once(w) && !is_made_for_each_loss(w);
  }

  QuantizedValues quantized_weight(Value w, ScaleGrid grid, bool transposed) {
    if (const auto made = quantized_.find({w, grid, transposed}); made != quantized_.end())
      return made->second;
    const std::optional<QuantizedValues> gathered = gathers_.find(w);
    if (gathered && !transposed) return *gathered;
    const Label here = to_.label;
    Label label = here;
    if (is_made_once(w)) label.phase = Phase::kUnshard;
    // This moves two bytes per code, and takes memory only while a block is computed.
    if (transposed && recipe_.has_one_weight() &&
        (gathered || is_made_once(w) || is_of_head(to_.label))) {
      const QuantizedValues rows = quantized_weight(w, grid, false);
      const LabelScope scope(to_, keeps_both_layouts(w) ? label : here);
      std::vector<Value> in{rows.values};
      if (grid == ScaleGrid::kBlocks) in.push_back(rows.inverse);
      const std::vector<Value> out = to_.add(TransposeQuantized{.grid = grid}, std::move(in));
      return quantized_[{w, grid, true}] = {.values = out[0],
                                            .inverse = out.size() > 1 ? out[1] : rows.inverse};
    }
    const LabelScope scope(to_, label);
    // The same holds of quantized values made from what stays in memory, under maxima taken once a
    // step.
    const bool is_made_here =
        is_made_for_each_loss(w) ||
        (transposed && !is_of_head(here) && stays(source_of(w).first) && !keeps_both_layouts(w));
    const DType rounds_to = source_of(w).second;
    const auto source = [&](Value m) { return rewriter_(source_of(m).first); };
    const QuantizeLayout one = transposed ? QuantizeLayout::kTransposed : QuantizeLayout::kRows;
    Quantize op{.format = DType::kE4M3, .grid = grid, .layout = one, .rounds_to = rounds_to};
    Value amax;
    if (!op.takes_maxima()) {
      const bool is_tensor = grid == ScaleGrid::kTensor;
      amax = amax_of_all(
          {.grid = grid, .transposed = transposed && !is_tensor, .rounds_to = rounds_to},
          sharing_scale_of(w), Float8Role::kW, source);
      if (is_tensor && groups_.tp.size > 1) amax = over_tp(amax, Float8Role::kW);
    }
    const LabelScope place(to_, is_made_here ? here : label);
    return quantize(w, source(w), amax, op, Float8Role::kW);
  }

  Value over_tp(Value amax, Float8Role role) {
    if (table_.has_scales()) return amax;
    Value& whole = over_tp_[amax];
    if (whole.valid()) return whole;
    Label label = to_.label;
    label.origin.part = static_cast<int32_t>(role);
    const LabelScope scope(to_, label);
    return whole = to_.apply(AllReduce{.group = groups_.tp, .op = ReduceOp::kMax}, {amax});
  }

  const Graph graph_;
  const Float8Recipe& recipe_;
  const WeightGroups& groups_;
  Rewriter rewriter_;
  Graph& to_;
  SharedScales weights_of_;
  Float8Table table_;
  bool has_maxima_ = false;
  std::string module_;             // of the matmul that is replaced
  bool is_forward_matmul_ = true;  // and not a gradient
  Value factor_;                   // of the optimizer
  std::set<Value> staged_;         // whose maxima are kept
  QuantizedGathers gathers_;
  std::map<Value, std::string> of_backward_;  // weights that no forward reads: modules
  SharedGradients gradients_;
  std::set<Value> differentiated_;  // weights with gradients
  std::set<Value> wants_columns_;   // of which weight gradients want maxima of columns
  std::map<Value, Value> over_tp_;
  std::map<int32_t, QuantizedCollective> carriers_;
  std::set<Value> spread_;  // of which other ranks of tp have parts, and get these quantized
  std::map<std::tuple<Value, ScaleGrid, bool>, Value> amax_;
  std::map<std::tuple<Value, ScaleGrid, bool>, QuantizedValues> quantized_;
};

}  // namespace

Graph quantize_matmuls(const Graph& graph, const Float8Recipe& recipe, const WeightGroups& groups,
                       bool has_scales) {
  return Quantizer(eliminate_dead(expand_composites(graph)), recipe, groups, has_scales).run();
}

}  // namespace tokamak
