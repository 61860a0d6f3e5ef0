#include <algorithm>
#include <map>
#include <set>

#include "tokamak/graph/rewriter.h"
#include "tokamak/ops/float8/fused_float8.h"
#include "tokamak/ops/float8/scaled_matmul.h"
#include "tokamak/ops/float8/transpose_codes.h"
#include "tokamak/ops/matmul/linear.h"

namespace tokamak {
namespace {

class LayoutSplitter {
 public:
  explicit LayoutSplitter(const Graph& graph) : graph_(graph), rewriter_(graph) {
    for (int32_t i = 0; i < graph.size(); ++i)
      for_each_use(graph.node(i), [&](Value v) { users_[v].insert(i); });
  }

  Graph run() {
    for (int32_t i = 0; i < graph_.size(); ++i) {
      if (makes_both(i)) first_reader_[*users_[{i, 1}].begin()].push_back(i);
      find_weight_gradients(i);
    }
    for (int32_t i = 0; i < graph_.size(); ++i) {
      for (const int32_t j : first_reader_[i]) put(j, Layout::kTransposed);
      for (const int32_t j : before_[i]) rewriter_.copy(j);
      if (is_early_.contains(i)) continue;
      if (makes_both(i)) {
        put(i, Layout::kRows);
      } else {
        rewriter_.copy(i);
      }
    }
    return rewriter_.finish();
  }

 private:
  using Layout = Quantize::Layout;

  // Finds the weight gradients that multiply the values of which node `i` makes codes, if nothing
  // but matmuls of these codes stands between: they come before it, so that values and what the
  // codes yield do not lie there at once.
  void find_weight_gradients(int32_t i) {
    const auto* op = graph_.node(i).as<Quantize>();
    if (op == nullptr || op->layout != Layout::kRows) return;
    const Value values = graph_.node(i).in[0];
    for (int32_t j = i + 1; j < graph_.size() && is_of_matmul(i, j); ++j) {
      const Node& node = graph_.node(j);
      if (node.as<LinearGradWeight>() == nullptr) continue;
      bool is_ready = std::find(node.in.begin(), node.in.end(), values) != node.in.end();
      for_each_use(node, [&](Value v) {
        is_ready = is_ready && (v.node < i || graph_.node(v.node).is_leaf());
      });
      if (!is_ready || !is_early_.insert(j).second) continue;
      before_[i].push_back(j);
    }
  }

  // Whether node `j` belongs to the matmuls of the gradient that node `i` encodes.
  bool is_of_matmul(int32_t i, int32_t j) const {
    const Node& node = graph_.node(j);
    if (node.is_leaf()) return true;
    const Label& label = graph_.node(i).label;
    const bool is_codes = node.as<Quantize>() != nullptr || node.as<Amax>() != nullptr ||
                          node.as<TransposeCodes>() != nullptr;
    const bool is_matmul = (node.as<ScaledMatmul>() != nullptr && node.accumulations.empty()) ||
                           node.as<LinearGradWeight>() != nullptr;
    return (is_codes || is_matmul) && node.label.phase == label.phase &&
           node.label.stage == label.stage && node.stream == graph_.node(i).stream &&
           node.when == graph_.node(i).when;
  }

  bool makes_both(int32_t i) const {
    const auto* op = graph_.node(i).as<Quantize>();
    if (op == nullptr || op->layout != Layout::kBoth || !users_.contains({i, 1})) return false;
    const Label& label = graph_.node(i).label;
    const Label& used = graph_.node(*users_.at({i, 1}).begin()).label;
    if (used.phase != label.phase || used.stage != label.stage) return false;
    const std::set<int32_t>& readers = users_.at(graph_.node(i).in[0]);
    return std::all_of(readers.begin(), readers.end(), [&](int32_t j) {
      const Node& reader = graph_.node(j);
      return reader.accumulations.empty() &&
             (reader.as<Amax>() != nullptr || reader.as<Quantize>() != nullptr);
    });
  }

  // Makes one of both layouts. The rows have what both share.
  void put(int32_t i, Layout layout) {
    Node node = rewriter_.moved(graph_.node(i));
    Quantize op = *node.as<Quantize>();
    const bool is_first = layout == Layout::kRows;
    const int32_t codes = is_first ? 0 : 1;
    const int32_t scales = op.inverse_output(!is_first);
    const bool shares_scales = scales == op.inverse_output(false);
    const std::vector<TensorType> both = node.out;
    op.layout = layout;
    op.has_amax = op.has_amax && is_first;
    node.op = std::make_shared<const Quantize>(op);
    node.out = {both[codes], both[scales]};
    if (op.has_amax) node.out.push_back(both.back());
    const int32_t id = rewriter_.to.append(std::move(node));
    rewriter_.map({i, codes}, {id, 0});
    if (is_first || !shares_scales) rewriter_.map({i, scales}, {id, 1});
    if (op.has_amax) rewriter_.map({i, static_cast<int32_t>(both.size()) - 1}, {id, 2});
  }

  const Graph& graph_;
  Rewriter rewriter_;
  std::map<Value, std::set<int32_t>> users_;
  std::map<int32_t, std::vector<int32_t>> first_reader_;  // nodes whose transposed codes it reads
  std::map<int32_t, std::vector<int32_t>> before_;        // weight gradients, by node that encodes
  std::set<int32_t> is_early_;                            // those
};

}  // namespace

Graph make_layouts_apart(const Graph& graph) {
  return LayoutSplitter(graph).run();
}

}  // namespace tokamak
