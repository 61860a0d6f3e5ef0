#include "tokamak/parallel/merge_products.h"

#include <algorithm>
#include <map>
#include <set>

#include "tokamak/graph/rewriter.h"
#include "tokamak/ops/add.h"
#include "tokamak/ops/linear.h"
#include "tokamak/ops/reshape.h"
#include "tokamak/ops/slice_rows.h"
#include "tokamak/ops/swiglu.h"
#include "tokamak/parallel/product_groups.h"

namespace tokamak {
namespace {

class Merger {
 public:
  Merger(const Graph& graph, ProductGroups found)
      : graph_(graph),
        groups_(std::move(found.groups)),
        sums_(std::move(found.sums)),
        merged_(groups_.size()),
        rewriter_(graph) {
    index_groups();
  }

  Graph run() {
    for (int32_t i = 0; i < graph_.size(); ++i) put(i);
    return rewriter_.finish();
  }

 private:
  void index_groups() {
    for (size_t g = 0; g < groups_.size(); ++g) {
      const ProductGroup& group = groups_[g];
      int32_t last_input = -1;
      int32_t last_weight = -1;
      int32_t last_slice = -1;
      for (const ProductMember& m : group.members) {
        is_gone_.insert({m.grad_input, m.grad_weight});
        group_of_[m.grad_input] = g;
        last_input = std::max(last_input, m.grad_input);
        last_weight = std::max(last_weight, m.grad_weight);
        last_slice = std::max(last_slice, m.weight.node);
      }
      grad_input_at_[last_input] = g;
      grad_weight_at_[last_weight] = g;
      weight_at_[last_slice].push_back(g);
      if (group.packed_grad < 0) continue;
      is_gone_.insert(group.products.begin(), group.products.end());
      product_at_[*std::max_element(group.products.begin(), group.products.end())] = g;
      activation_at_[group.activation] = g;
      packed_grad_at_[group.packed_grad] = g;
    }
    for (const auto& [root, sum] : sums_) is_gone_.insert(sum.inside.begin(), sum.inside.end());
  }

  void put(int32_t i) {
    const LabelScope scope(rewriter_.to, graph_.node(i).label);
    if (const auto at = product_at_.find(i); at != product_at_.end()) put_product(i, at->second);
    if (const auto at = grad_input_at_.find(i); at != grad_input_at_.end())
      put_grad_input(at->second);
    if (const auto at = grad_weight_at_.find(i); at != grad_weight_at_.end())
      put_grad_weight(i, at->second);
    if (const auto at = activation_at_.find(i); at != activation_at_.end())
      return put_packed(i, at->second);
    if (const auto at = packed_grad_at_.find(i); at != packed_grad_at_.end())
      return put_packed(i, at->second);
    if (const auto at = sums_.find(i); at != sums_.end()) return put_sum(i, at->second);
    if (is_gone_.contains(i)) return;
    rewriter_.copy(i);
    if (const auto at = weight_at_.find(i); at != weight_at_.end()) {
      for (const size_t g : at->second) put_weight(i, g);
    }
  }

  // The weights as one matrix, thrown away and gathered again as its parts are.
  void put_weight(int32_t like, size_t g) {
    const std::vector<ProductMember>& members = groups_[g].members;
    Graph& to = rewriter_.to;
    const LabelScope scope(to, graph_.node(like).label);
    const Value flat = rewriter_(members[0].bucket);
    const Value rows =
        to.apply(SliceRows{.begin = members.front().begin, .end = members.back().end}, {flat});
    const int64_t columns = graph_.type(members[0].weight).dims[1];
    merged_[g].weight = to.apply(Reshape{.dims = {-1, columns}}, {rows});
    for (const Value v : {rows, merged_[g].weight}) {
      to.mutable_node(v.node).is_dropped = graph_.node(like).is_dropped;
      to.mutable_node(v.node).stream = graph_.node(like).stream;
    }
  }

  Value grads(size_t g) {
    Value& dy = merged_[g].dy;
    if (!dy.valid()) {
      std::vector<Value> in;
      for (const Value v : groups_[g].packer_in) in.push_back(rewriter_(v));
      dy = rewriter_.to.add_node(groups_[g].packer.rules, groups_[g].packer.op, in)[0];
    }
    return dy;
  }

  void put_product(int32_t i, size_t g) {
    merged_[g].product =
        rewriter_.to.apply(Linear{}, {rewriter_(graph_.node(i).in[0]), merged_[g].weight});
  }

  // Swiglu or its gradient, of both products at once.
  void put_packed(int32_t i, size_t g) {
    const Node& n = graph_.node(i);
    if (n.as<Swiglu>() != nullptr) {
      rewriter_.map({i, 0}, rewriter_.to.apply(Swiglu{.packed = true}, {merged_[g].product}));
    } else {
      merged_[g].dy =
          rewriter_.to.apply(SwigluGrad{.packed = true}, {merged_[g].product, rewriter_(n.in[2])});
    }
  }

  void put_grad_input(size_t g) {
    merged_[g].dx = rewriter_.to.apply(LinearGradInput{}, {grads(g), merged_[g].weight});
  }

  void put_grad_weight(int32_t i, size_t g) {
    const ProductGroup& group = groups_[g];
    const Node& one = graph_.node(i);
    const Value dw = rewriter_.to.apply(LinearGradWeight{}, {rewriter_(one.in[0]), grads(g)});
    StateDecl joint = graph_.states()[group.members.front().gradient];
    joint.name += ".." + graph_.states()[group.members.back().gradient].name;
    joint.type = rewriter_.to.type(dw);
    const Value into = rewriter_.to.read(graph_.states().declare_once(joint));
    rewriter_.to.accumulate(dw, into, one.accumulations[0].mode);
    rewriter_.to.mutable_node(dw.node).when = one.when;
  }

  // What is left of a sum.
  void put_sum(int32_t root, const ProductSum& sum) {
    Value total;
    std::set<size_t> added;
    for (const Value term : sum.terms) {
      const auto group = group_of_.find(term.node);
      if (group != group_of_.end() && !added.insert(group->second).second) continue;
      const Value v = group == group_of_.end() ? rewriter_(term) : merged_[group->second].dx;
      total = total.valid() ? rewriter_.to.apply(Add{}, {total, v}) : v;
    }
    rewriter_.map({root, 0}, total);
  }

  struct Merged {
    Value weight, product, dy, dx;
  };

  const Graph& graph_;
  std::vector<ProductGroup> groups_;
  std::map<int32_t, ProductSum> sums_;
  std::vector<Merged> merged_;  // by group
  Rewriter rewriter_;
  std::map<int32_t, size_t> group_of_;  // by input gradient
  // By the node in whose place a merged one comes:
  std::map<int32_t, size_t> grad_input_at_, grad_weight_at_, product_at_, activation_at_,
      packed_grad_at_;
  std::map<int32_t, std::vector<size_t>> weight_at_;
  std::set<int32_t> is_gone_;
};

}  // namespace

Graph merge_products(const Graph& graph, std::vector<std::string>& notes) {
  ProductGroups found = find_product_groups(graph, notes);
  if (found.groups.empty()) return graph;
  return Merger(graph, std::move(found)).run();
}

}  // namespace tokamak
