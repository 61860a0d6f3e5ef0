#include <algorithm>
#include <map>
#include <set>

#include "tokamak/graph/passes.h"
#include "tokamak/graph/rewriter.h"
#include "tokamak/ops/elementwise/swiglu.h"

namespace tokamak {
namespace {

class GateKeeper {
 public:
  explicit GateKeeper(const Graph& graph) : graph_(graph), rewriter_(graph) {}

  Graph run() {
    for (int32_t i = 0; i < graph_.size(); ++i) {
      const auto* grad = graph_.node(i).as<SwigluGrad>();
      if (grad != nullptr && grad->gates == GateInputs::kCodesIfKept) marked_.push_back(i);
    }
    if (marked_.empty()) return graph_;
    find_users();
    for (const int32_t i : marked_) find_forward(i);
    if (forward_of_.empty()) return graph_;
    for (int32_t i = 0; i < graph_.size(); ++i) {
      if (makers_.contains(i)) {
        put_forward(i);
      } else if (const auto at = forward_of_.find(i); at != forward_of_.end()) {
        put_gradient(i, at->second);
      } else {
        rewriter_.copy(i);
      }
    }
    return eliminate_dead(rewriter_.finish());
  }

 private:
  // Whether a node shows all of its input.
  bool shows_all(const Node& node) const {
    return !node.is_leaf() && node.rules->is_view &&
           graph_.type(node.in[0]).numel() == node.out[0].numel();
  }

  // Returns what a value shows all of, or itself.
  Value source_of(Value v) const {
    while (shows_all(graph_.producer(v))) v = graph_.producer(v).in[0];
    return v;
  }

  static size_t num_gates(bool packed) { return packed ? 1 : 2; }

  std::vector<Value> gates_of(int32_t i, bool packed) const {
    std::vector<Value> gates;
    for (size_t k = 0; k < num_gates(packed); ++k) gates.push_back(source_of(graph_.node(i).in[k]));
    return gates;
  }

  // Finds who reads the gates of marked nodes, views aside.
  void find_users() {
    for (const int32_t i : marked_) {
      for (const Value v : gates_of(i, graph_.node(i).as<SwigluGrad>()->packed)) users_[v];
    }
    for (int32_t i = 0; i < graph_.size(); ++i) {
      const Node& node = graph_.node(i);
      if (node.is_leaf() || shows_all(node)) continue;
      for_each_use(node, [&](Value v) {
        const auto at = users_.find(source_of(v));
        if (at != users_.end()) at->second.insert(i);
      });
    }
  }

  void find_forward(int32_t i) {
    const auto* grad = graph_.node(i).as<SwigluGrad>();
    const std::vector<Value> gates = gates_of(i, grad->packed);
    const auto is_kept = [&](Value v) {
      return !graph_.producer(v).is_leaf() && graph_.producer(v).label.phase == Phase::kForward;
    };
    if (!std::all_of(gates.begin(), gates.end(), is_kept)) return;
    int32_t forward = -1;
    for (const Value v : gates) {
      for (const int32_t j : users_.at(v)) {
        const Node& user = graph_.node(j);
        if (user.rules->is_view || (user.label.phase != Phase::kForward && j != i)) return;
        if (is_forward_of(j, i)) forward = j;
      }
    }
    if (forward < 0) return;
    forward_of_[i] = forward;
    makers_.insert(forward);
  }

  // Whether node `j` is the activation of which node `i` is the gradient.
  bool is_forward_of(int32_t j, int32_t i) const {
    const auto* made = graph_.node(j).as<Swiglu>();
    const auto* grad = graph_.node(i).as<SwigluGrad>();
    return made != nullptr && made->packed == grad->packed && made->kind == grad->kind &&
           graph_.type(graph_.node(j).in[0]) == graph_.type(graph_.node(i).in[0]) &&
           gates_of(j, made->packed) == gates_of(i, grad->packed);
  }

  void put_forward(int32_t i) {
    Node node = rewriter_.moved(graph_.node(i));
    Swiglu op = *graph_.node(i).as<Swiglu>();
    op.makes_codes = true;
    node.op = std::make_shared<const Swiglu>(op);
    Types in;
    for (const Value v : node.in) in.push_back(rewriter_.to.type(v));
    node.out = op.infer(in);
    rewriter_.put(i, std::move(node));
  }

  void put_gradient(int32_t i, int32_t forward) {
    Node node = rewriter_.moved(graph_.node(i));
    SwigluGrad op = *graph_.node(i).as<SwigluGrad>();
    op.gates = GateInputs::kCodes;
    const int32_t num_codes = static_cast<int32_t>(2 * num_gates(op.packed));
    std::vector<Value> in;
    for (int32_t k = 1; k <= num_codes; ++k) in.push_back(rewriter_({forward, k}));
    in.insert(in.end(), node.in.begin() + static_cast<int64_t>(num_gates(op.packed)),
              node.in.end());
    node.in = std::move(in);
    node.op = std::make_shared<const SwigluGrad>(op);
    rewriter_.put(i, std::move(node));
  }

  const Graph& graph_;
  Rewriter rewriter_;
  std::vector<int32_t> marked_;
  std::map<Value, std::set<int32_t>> users_;  // by what is shown
  std::map<int32_t, int32_t> forward_of_;     // by gradient
  std::set<int32_t> makers_;                  // of codes
};

}  // namespace

Graph keep_gate_codes(const Graph& graph) {
  return GateKeeper(graph).run();
}

}  // namespace tokamak
