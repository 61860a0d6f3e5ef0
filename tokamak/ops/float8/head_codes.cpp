#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "tokamak/graph/passes.h"
#include "tokamak/graph/rewriter.h"
#include "tokamak/ops/elementwise/cast.h"
#include "tokamak/ops/float8/fused_float8.h"
#include "tokamak/ops/float8/scaled_matmul.h"
#include "tokamak/ops/float8/transpose_codes.h"

namespace tokamak {
namespace {

constexpr size_t kWeight = 2;  // among the inputs of a matmul: codes, then inverse scales

class HeadCodes {
 public:
  explicit HeadCodes(const Graph& graph) : graph_(graph), rewriter_(graph) {
    for (int32_t i = 0; i < graph.size(); ++i)
      for_each_use(graph.node(i), [&](Value v) { users_[v].push_back(i); });
    for (int32_t i = 0; i < graph.size(); ++i) {
      if (auto made = made_for(i)) made_for_.emplace(i, std::move(*made));
    }
    for (const auto& [i, made] : made_for_) delay(i);
  }

  Graph run() {
    for (int32_t i = 0; i < graph_.size(); ++i) {
      if (!is_delayed_.contains(i)) put(i);
      for (const int32_t j : delayed_to_[i]) put(j);
    }
    return eliminate_dead(rewriter_.finish());
  }

 private:
  void put(int32_t i) {
    if (const auto made = made_for_.find(i); made != made_for_.end()) {
      put_matmul(i, made->second);
    } else if (is_maximum_now(i)) {
      put_maximum(i);
    } else if (!is_transposed_again(i)) {
      rewriter_.copy(i);
    }
  }

  // Returns the node that makes the codes of a weight that matmul `i` of the loss reads, if these
  // can be made just before it.
  std::optional<Node> made_for(int32_t i) const {
    const Node& matmul = graph_.node(i);
    if (matmul.as<ScaledMatmul>() == nullptr || matmul.label.block >= 0) return std::nullopt;
    const Node& codes = graph_.producer(matmul.in[kWeight]);
    const bool is_transposed = codes.as<TransposeCodes>() != nullptr;
    Node made = is_transposed ? graph_.producer(codes.in[0]) : codes;
    if (made.as<Quantize>() == nullptr || !is_weight(made.in[0])) return std::nullopt;
    Quantize op = *made.as<Quantize>();
    if (is_transposed) op.layout = Quantize::Layout::kTransposed;
    op.has_amax = false;
    made.op = std::make_shared<const Quantize>(op);
    const auto type = [&](size_t k) { return graph_.type(matmul.in[k]); };
    made.out = {type(kWeight), type(kWeight + 1)};
    made.label = matmul.label;
    Types in;
    for (const Value v : made.in) {
      if (v.valid()) in.push_back(graph_.type(v));
    }
    const bool has_maxima = op.takes_maxima() || in.size() > 1;
    if (!has_maxima) return std::nullopt;
    TOK_CHECK(op.infer(in) == made.out, "other codes of a head: {}", op.describe());
    return made;
  }

  bool is_weight(Value v) const {
    const Node& n = graph_.producer(v);
    if (n.is_leaf()) return true;
    const bool moves = n.rules->is_view || n.rules->is_communication || n.as<Cast>() != nullptr;
    return moves && !n.in.empty() && is_weight(n.in[0]);
  }

  // Lets the input gradient that matmul `i` computes wait for the weight gradient of the same
  // tokens, if that needs the gradient of the logits besides its codes: once `i` has codes, which
  // are then the last, the gradient is freed before those of the weight are made.
  void delay(int32_t i) {
    const Value codes = graph_.node(i).in[0];
    const auto* op = graph_.producer(codes).as<Quantize>();
    if (op == nullptr || users_.at(codes).size() > 1) return;
    int32_t last = -1;
    for (const int32_t reader : users_.at(graph_.producer(codes).in[0])) {
      if (reader == codes.node) continue;
      if (!graph_.node(reader).accumulations.empty()) last = std::max(last, reader);
      if (graph_.node(reader).as<Quantize>() == nullptr) continue;
      for (const int32_t matmul : users_.at({reader, 0})) last = std::max(last, matmul);
    }
    if (last < i || users_.at({i, 0}).front() < last) return;
    is_delayed_.insert({codes.node, i});
    delayed_to_[last] = {codes.node, i};
  }

  void put_matmul(int32_t i, const Node& made) {
    const int32_t codes = rewriter_.to.append(rewriter_.moved(made));
    Node matmul = graph_.node(i);
    matmul.in[kWeight] = matmul.in[kWeight + 1] = Value{};
    matmul = rewriter_.moved(matmul);
    matmul.in[kWeight] = {codes, 0};
    matmul.in[kWeight + 1] = {codes, 1};
    rewriter_.put(i, std::move(matmul));
  }

  // Whether all that read a value are matmuls that read others now, or codes transposed for such.
  bool is_made_again(Value v) const {
    const auto readers = users_.find(v);
    if (readers == users_.end()) return true;
    return std::all_of(readers->second.begin(), readers->second.end(), [&](int32_t i) {
      const Node& reader = graph_.node(i);
      const bool is_weight = made_for_.contains(i) && reader.in[0] != v && reader.in[1] != v;
      return is_weight || is_transposed_again(i);
    });
  }

  bool is_transposed_again(int32_t i) const {
    return graph_.node(i).as<TransposeCodes>() != nullptr && users_.contains({i, 0}) &&
           is_made_again({i, 0}) && is_made_again({i, 1});
  }

  // Whether nothing but the maximum of a delayed scale is still read.
  bool is_maximum_now(int32_t i) const {
    const auto* op = graph_.node(i).as<Quantize>();
    if (op == nullptr || !op->is_delayed || !op->has_amax) return false;
    for (int32_t k = 0; k < op->num_codes_and_scales(); ++k) {
      if (!is_made_again({i, k})) return false;
    }
    return true;
  }

  void put_maximum(int32_t i) {
    const Node& node = graph_.node(i);
    const auto* op = node.as<Quantize>();
    Node amax = rewriter_.moved(node);
    amax.in.resize(1);
    amax.rules = &kRules<Amax>;
    amax.op = std::make_shared<const Amax>(Amax{.grid = op->grid, .rounds_to = op->rounds_to});
    amax.out = {node.out.back()};
    const auto output = static_cast<int32_t>(node.out.size()) - 1;
    rewriter_.map({i, output}, {rewriter_.to.append(std::move(amax)), 0});
  }

  const Graph& graph_;
  Rewriter rewriter_;
  std::map<Value, std::vector<int32_t>> users_;
  std::map<int32_t, Node> made_for_;                    // by matmul
  std::map<int32_t, std::vector<int32_t>> delayed_to_;  // nodes that come right behind
  std::set<int32_t> is_delayed_;
};

}  // namespace

Graph make_head_codes_again(const Graph& graph) {
  return HeadCodes(graph).run();
}

}  // namespace tokamak
