#include "tokamak/ops/matmul/cut_weight_gradients.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "tokamak/graph/cover_collectives.h"
#include "tokamak/graph/rewriter.h"
#include "tokamak/ops/layout/slice_rows.h"
#include "tokamak/ops/matmul/linear.h"

namespace tokamak {
namespace {

// A piece takes at least this many times as long as the largest collective.
constexpr double kLonger = 1.2;
// Kernels of large matmuls compute such tiles.
constexpr int64_t kTileRows = 256;
constexpr int64_t kTileColumns = 128;

// Cuts `tile_rows` rows of tiles into `count` pieces of at least `least` rows. Pieces of whole
// waves come first, because cutting costs nothing there.
std::vector<int64_t> pieces_of(int64_t tile_rows, int64_t tile_columns, int64_t count,
                               int64_t least, int64_t num_sms) {
  const int64_t wave = num_sms / std::gcd(num_sms, tile_columns);
  std::vector<int64_t> pieces;
  for (; count > 0; --count) {
    const int64_t equal = tile_rows / count;
    const int64_t waves = (equal + wave / 2) / wave * wave;
    const bool fits = waves > 0 && tile_rows - waves >= (count - 1) * least;
    pieces.push_back(count > 1 && fits ? waves : equal);
    tile_rows -= pieces.back();
  }
  return pieces;
}

class GradientCutter {
 public:
  GradientCutter(const Graph& graph, const Rates& rates)
      : graph_(graph), num_sms_(rates.num_sms), rewriter_(graph) {
    for (int32_t i = 0; i < graph.size(); ++i) {
      const Node& node = graph.node(i);
      for (const Value v : node.in) {
        if (v.valid()) read_.insert(v.node);
      }
      if (is_covered_in_forward(node))
        least_ =
            std::max(least_, kLonger * flops_beside(node_cost(graph, node), node.stream, rates));
    }
  }

  Graph run() {
    if (least_ == 0.0) return graph_;
    for (int32_t i = 0; i < graph_.size(); ++i) {
      const Node& node = graph_.node(i);
      if (node.is_leaf() || node.label.block < 0) continue;
      Block& block = blocks_[node.label.block];
      if (is_covered_in_forward(node) || is_covered_in_backward(node)) ++block.collectives;
      if (may_be_cut(i))
        block.gradients.push_back({.node = i, .flops = node_cost(graph_, node).flops});
    }
    for (auto& [_, block] : blocks_) choose(block);
    for (int32_t i = 0; i < graph_.size(); ++i) {
      const auto cut = pieces_.find(i);
      if (cut == pieces_.end()) {
        rewriter_.copy(i);
      } else {
        put(i, cut->second);
      }
    }
    return rewriter_.finish();
  }

 private:
  struct Gradient {
    int32_t node = 0;
    double flops = 0.0;
    int64_t pieces = 1;

    double of_piece() const { return flops / static_cast<double>(pieces); }
  };

  struct Block {
    int64_t collectives = 0;
    std::vector<Gradient> gradients;
  };

  static bool is_covered_in_backward(const Node& node) {
    return node.label.phase == Phase::kBackward && !node.is_clone &&
           is_on_covered_stream(*node.rules, node.stream);
  }

  bool may_be_cut(int32_t i) const {
    const Node& node = graph_.node(i);
    if (node.label.phase != Phase::kBackward || node.accumulations.size() != 1 ||
        node.out.size() != 1 || read_.contains(i))
      return false;
    if (const auto* plain = node.as<LinearGradWeight>()) return plain->rows == 0;
    const Cost cost = node_cost(graph_, node);
    return cost.kind == Cost::Kind::kGemm && cost.product == Cost::Product::kWeightGradient &&
           cost.scales == Cost::Scales::kTensor;
  }

  // Cuts the largest gradients until there is a piece for each collective.
  void choose(Block& block) {
    for (auto have = std::ssize(block.gradients); have < block.collectives; ++have) {
      Gradient* largest = nullptr;
      for (Gradient& gradient : block.gradients) {
        if (!may_have_one_more(gradient)) continue;
        if (largest == nullptr || gradient.of_piece() > largest->of_piece()) largest = &gradient;
      }
      if (largest == nullptr) break;
      ++largest->pieces;
    }
    for (const Gradient& gradient : block.gradients) {
      if (gradient.pieces > 1) cut(gradient);
    }
  }

  bool may_have_one_more(const Gradient& gradient) const {
    const int64_t pieces = gradient.pieces + 1;
    return gradient.flops >= least_ * static_cast<double>(pieces) &&
           graph_.node(gradient.node).out[0].dims[0] >= pieces * kTileRows;
  }

  void cut(const Gradient& gradient) {
    const Dims& dims = graph_.node(gradient.node).out[0].dims;
    const int64_t tile_rows = dims[0] / kTileRows;
    const double of_tile_row = gradient.flops / static_cast<double>(tile_rows);
    const auto least = static_cast<int64_t>(least_ / of_tile_row) + 1;
    std::vector<int64_t>& rows = pieces_[gradient.node];
    rows = pieces_of(tile_rows, (dims[1] + kTileColumns - 1) / kTileColumns, gradient.pieces, least,
                     num_sms_);
    for (int64_t& r : rows) r *= kTileRows;
    rows.back() += dims[0] % kTileRows;
  }

  void put(int32_t i, const std::vector<int64_t>& pieces) {
    const Node& node = graph_.node(i);
    const Node moved = rewriter_.moved(node);
    Graph& to = rewriter_.to;
    const LabelScope scope(to, node.label);
    int64_t begin = 0;
    for (const int64_t rows : pieces) {
      Node piece = moved;
      const SliceRows slice{.begin = begin, .end = begin + rows};
      piece.out[0].dims[0] = rows;
      piece.accumulations[0].into = to.apply(slice, {moved.accumulations[0].into});
      if (const auto* plain = node.as<LinearGradWeight>()) {
        LinearGradWeight op = *plain;
        op.begin = begin;
        op.rows = rows;
        piece.op = std::make_shared<const LinearGradWeight>(std::move(op));
      } else {
        piece.in[0] = to.apply(slice, {moved.in[0]});
      }
      to.append(std::move(piece));
      begin += rows;
    }
  }

  const Graph& graph_;
  const int64_t num_sms_;
  Rewriter rewriter_;
  std::set<int32_t> read_;
  double least_ = 0.0;  // operations of the smallest piece
  std::map<int32_t, Block> blocks_;
  std::map<int32_t, std::vector<int64_t>> pieces_;  // rows, by gradient
};

}  // namespace

Graph cut_weight_gradients(const Graph& graph, const Rates& rates) {
  return GradientCutter(graph, rates).run();
}

}  // namespace tokamak
