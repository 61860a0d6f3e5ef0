#include "tokamak/parallel/float8/shared_scales.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "tokamak/ops/elementwise/cast.h"
#include "tokamak/ops/layout/reshape.h"
#include "tokamak/ops/layout/slice_rows.h"
#include "tokamak/ops/matmul/linear.h"

namespace tokamak {
namespace {

class GradientFinder {
 public:
  GradientFinder(const Graph& graph, const SharedScales& weights_of, const Float8Recipe& recipe)
      : graph_(graph),
        weights_of_(weights_of),
        has_scale_of_all_(recipe.g_of_dx == ScaleGrid::kTensor) {
    for (int32_t i = 0; i < graph.size(); ++i)
      for_each_use(graph.node(i), [&](Value v) { users_[v].push_back(i); });
  }

  SharedGradients run() {
    std::map<std::pair<Value, int64_t>, std::vector<int32_t>> grad_inputs;
    for (int32_t i = 0; i < graph_.size(); ++i) {
      const Node& n = graph_.node(i);
      if (!is_marked<LinearGradInput>(n)) continue;
      if (const auto all = weights_of_.find(n.in[1]); all != weights_of_.end())
        grad_inputs[{all->second[0], rows_that_share(n.in[0])}].push_back(i);
    }
    for (const auto& [unused, nodes] : grad_inputs) {
      if (nodes.size() > 1) share(nodes);
    }
    return std::move(found_);
  }

 private:
  // Returns how many rows a gradient has, since a scale of a row is shared only by gradients that
  // have this row: where ranks of tp share all key-value heads, those of keys and values are sums
  // of which each rank has some rows. A scale of all rows is shared in any case.
  int64_t rows_that_share(Value v) const {
    if (has_scale_of_all_) return 0;
    const Dims& dims = graph_.type(v).dims;
    return std::accumulate(dims.begin(), dims.end() - 1, int64_t{1}, std::multiplies<>());
  }

  // Whether `j` multiplies quantized values of a gradient.
  bool reads_quantized(int32_t j) const {
    const Node& n = graph_.node(j);
    return is_marked<LinearGradInput>(n) || is_marked<LinearGradWeight>(n);
  }

  void share(const std::vector<int32_t>& grad_inputs) {
    std::vector<Value> gradients;
    std::set<Value> weights;
    for (const int32_t i : grad_inputs) {
      const Value g = graph_.node(i).in[0];
      weights.insert(graph_.node(i).in[1]);
      if (std::find(gradients.begin(), gradients.end(), g) == gradients.end())
        gradients.push_back(g);
    }
    // Chunks of the head are multiplied by one weight, one after the other.
    if (weights.size() != gradients.size() || weights.size() == 1) return;
    const int32_t last = grad_inputs.back();
    std::set<int32_t> waiting;
    for (const Value g : gradients) {
      for (const int32_t j : users_[g]) {
        if (j < last && reads_quantized(j)) waiting.insert(j);
      }
    }
    const bool can_wait = std::all_of(waiting.begin(), waiting.end(), [&](int32_t j) {
      const std::vector<int32_t>& of = users_[{j, 0}];
      return std::all_of(of.begin(), of.end(),
                         [&](int32_t user) { return user >= last || waiting.contains(user); });
    });
    if (!can_wait) return;
    for (const Value g : gradients) found_.all_of[g] = gradients;
    if (waiting.empty()) return;
    found_.waits.insert(waiting.begin(), waiting.end());
    found_.waiting[last].merge(waiting);
  }

  const Graph& graph_;
  const SharedScales& weights_of_;
  const bool has_scale_of_all_;
  std::map<Value, std::vector<int32_t>> users_;
  SharedGradients found_;
};

}  // namespace

SharedScales find_shared_scales(const Graph& graph, const Float8Recipe& recipe) {
  std::map<Value, std::vector<Value>> by_input;
  for (int32_t i = 0; i < graph.size(); ++i) {
    const Node& n = graph.node(i);
    if (is_marked<Linear>(n)) by_input[n.in[0]].push_back(n.in[1]);
  }
  SharedScales shared;
  for (const auto& [input, weights] : by_input) {
    for (const Value w : weights)
      shared.emplace(w, recipe.shares_scales ? weights : std::vector{w});
  }
  return shared;
}

std::optional<std::pair<Value, int64_t>> place_in_bucket(const Graph& graph, Value weight) {
  const Node* n = &graph.producer(weight);
  if (n->as<Cast>() != nullptr) n = &graph.producer(n->in[0]);
  if (n->as<Reshape>() != nullptr) n = &graph.producer(n->in[0]);
  const auto* rows = n->as<SliceRows>();
  return rows != nullptr ? std::optional(std::pair(n->in[0], rows->begin)) : std::nullopt;
}

SharedGradients find_shared_gradients(const Graph& graph, const SharedScales& weights_of,
                                      const Float8Recipe& recipe) {
  return GradientFinder(graph, weights_of, recipe).run();
}

}  // namespace tokamak
