#include "tokamak/parallel/matmuls/merge_matmuls.h"

#include <algorithm>
#include <map>
#include <set>

#include "tokamak/graph/rewriter.h"
#include "tokamak/ops/attention/attention.h"
#include "tokamak/ops/elementwise/add.h"
#include "tokamak/ops/elementwise/cast.h"
#include "tokamak/ops/elementwise/swiglu.h"
#include "tokamak/ops/layout/reshape.h"
#include "tokamak/ops/layout/slice_rows.h"
#include "tokamak/ops/matmul/linear.h"
#include "tokamak/parallel/matmuls/matmul_groups.h"

namespace tokamak {
namespace {

// The weights of a group, or its biases.
struct Part {
  size_t group = 0;
  MatmulTensor MatmulMember::*which = nullptr;
};

class Merger {
 public:
  Merger(const Graph& graph, MatmulGroups found)
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
      const MatmulGroup& group = groups_[g];
      int32_t last_input = -1;
      for (const MatmulMember& m : group.members) {
        is_gone_.insert(m.grad_input);
        group_of_[m.grad_input] = g;
        last_input = std::max(last_input, m.grad_input);
      }
      grad_input_at_[last_input] = g;
      index_tensors(g, &MatmulMember::weight);
      if (group.members[0].bias.grad >= 0) index_tensors(g, &MatmulMember::bias);
      if (!group.matmuls.empty()) index_forward(g);
    }
    for (const auto& [root, sum] : sums_) is_gone_.insert(sum.inside.begin(), sum.inside.end());
  }

  // The joint tensor comes after its last part, its gradient in place of the last part's gradient.
  void index_tensors(size_t g, MatmulTensor MatmulMember::*which) {
    int32_t last_grad = -1;
    int32_t last_slice = -1;
    for (const MatmulMember& m : groups_[g].members) {
      is_gone_.insert((m.*which).grad);
      last_grad = std::max(last_grad, (m.*which).grad);
      last_slice = std::max(last_slice, (m.*which).value.node);
    }
    grad_at_[last_grad] = {g, which};
    if (last_slice >= 0) tensor_at_[last_slice].push_back({g, which});
  }

  void index_forward(size_t g) {
    const MatmulGroup& group = groups_[g];
    is_gone_.insert(group.matmuls.begin(), group.matmuls.end());
    if (const auto& heads = group.heads) {
      is_gone_.insert(heads->inside.begin(), heads->inside.end());
      activation_at_[heads->attention] = g;
      packed_grad_at_[heads->gradient] = g;
    } else {
      matmul_at_[*std::max_element(group.matmuls.begin(), group.matmuls.end())] = g;
      activation_at_[group.activation] = g;
      packed_grad_at_[group.packed_grad] = g;
    }
  }

  void put(int32_t i) {
    const LabelScope scope(rewriter_.to, graph_.node(i).label);
    if (const auto at = matmul_at_.find(i); at != matmul_at_.end()) put_matmul(at->second);
    if (const auto at = grad_input_at_.find(i); at != grad_input_at_.end())
      put_grad_input(at->second);
    if (const auto at = grad_at_.find(i); at != grad_at_.end()) put_grad(i, at->second);
    if (const auto at = activation_at_.find(i); at != activation_at_.end()) {
      const size_t g = at->second;
      return groups_[g].heads ? put_attention(i, g) : put_activation(i, g);
    }
    if (const auto at = packed_grad_at_.find(i); at != packed_grad_at_.end()) {
      const size_t g = at->second;
      return groups_[g].heads ? put_attention_grad(i, g) : put_activation_grad(i, g);
    }
    if (const auto at = sums_.find(i); at != sums_.end()) return put_sum(i, at->second);
    if (is_gone_.contains(i)) return;
    rewriter_.copy(i);
    if (const auto at = tensor_at_.find(i); at != tensor_at_.end()) {
      for (const auto& part : at->second) put_tensor(i, part);
    }
  }

  // Emits weights as one matrix or biases as one vector, dropped and gathered again as the parts
  // are.
  void put_tensor(int32_t like, const Part& part) {
    const std::vector<MatmulMember>& members = groups_[part.group].members;
    const MatmulTensor& first = members.front().*part.which;
    const MatmulTensor& last = members.back().*part.which;
    Graph& to = rewriter_.to;
    const LabelScope scope(to, graph_.node(like).label);
    Dims dims = graph_.type(first.value).dims;
    dims[0] = -1;
    const Value rows =
        to.apply(SliceRows{.begin = first.begin, .end = last.end}, {rewriter_(first.bucket)});
    Value joint = to.apply(Reshape{.dims = dims}, {rows});
    for (const Value v : {rows, joint}) {
      to.mutable_node(v.node).is_dropped = graph_.node(like).is_dropped;
      to.mutable_node(v.node).stream = graph_.node(like).stream;
    }
    if (const auto* cast = graph_.producer(first.value).as<Cast>())
      joint = to.apply(*cast, {joint});
    (part.which == &MatmulMember::weight ? merged_[part.group].weight : merged_[part.group].bias) =
        joint;
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

  void put_matmul(size_t g) {
    Merged& m = merged_[g];
    const Value x = graph_.node(groups_[g].matmuls[0]).in[0];
    const auto* first = graph_.node(groups_[g].matmuls[0]).as<Linear>();
    m.matmul =
        rewriter_.to.apply(Linear{.low_precision = first->low_precision, .module = first->module},
                           {rewriter_(x), m.weight, m.bias});
  }

  void put_activation(int32_t i, size_t g) {
    const Swiglu op{.packed = true, .kind = graph_.node(i).as<Swiglu>()->kind};
    rewriter_.map({i, 0}, rewriter_.to.apply(op, {merged_[g].matmul}));
  }

  void put_activation_grad(int32_t i, size_t g) {
    const Node& n = graph_.node(i);
    const SwigluGrad op{.packed = true, .kind = n.as<SwigluGrad>()->kind};
    merged_[g].dy = rewriter_.to.apply(op, {merged_[g].matmul, rewriter_(n.in[2])});
  }

  // Emits the matmul, its heads, their rotation and attention.
  void put_attention(int32_t i, size_t g) {
    const Node& n = graph_.node(i);
    Graph& to = rewriter_.to;
    put_matmul(g);
    const TensorType& k = graph_.type(n.in[1]);
    Value qkv = to.apply(Reshape{.dims = {0, 0, -1, k.dims[3]}}, {merged_[g].matmul});
    merged_[g].qkv = rotated(qkv, g, false);
    Attention op = *n.as<Attention>();
    op.packed_kv_heads = k.dims[2];
    std::vector<Value> in{merged_[g].qkv};
    for (size_t at = 3; at < n.in.size(); ++at) in.push_back(rewriter_(n.in[at]));
    const std::vector<Value> out = to.add(op, in);
    for (size_t at = 0; at < out.size(); ++at)
      rewriter_.map({i, static_cast<int32_t>(at)}, out[at]);
  }

  void put_attention_grad(int32_t i, size_t g) {
    const Node& n = graph_.node(i);
    Graph& to = rewriter_.to;
    AttentionGrad op = *n.as<AttentionGrad>();
    op.forward.packed_kv_heads = graph_.type(n.in[1]).dims[2];
    std::vector<Value> in{merged_[g].qkv};
    for (size_t at = 3; at < n.in.size(); ++at) in.push_back(rewriter_(n.in[at]));
    merged_[g].dy = to.apply(Reshape{.dims = {0, 0, -1}}, {rotated(to.apply(op, in), g, true)});
  }

  // Returns the heads of queries and keys rotated, or rotated back.
  Value rotated(Value packed, size_t g, bool inverse) {
    const PackedHeads& heads = *groups_[g].heads;
    if (!heads.rope) return packed;
    const Node& attention = graph_.node(heads.attention);
    Rope op = *heads.rope;
    op.inverse = op.inverse != inverse;
    op.num_turned = graph_.type(attention.in[0]).dims[2] + graph_.type(attention.in[1]).dims[2];
    return rewriter_.to.apply(op, {packed, rewriter_(heads.positions)});
  }

  void put_grad_input(size_t g) {
    const Node& one = graph_.node(groups_[g].members[0].grad_input);
    merged_[g].dx = rewriter_.to.apply(*one.as<LinearGradInput>(), {grads(g), merged_[g].weight});
  }

  // Emits the gradient of the joint weight or bias.
  void put_grad(int32_t i, const Part& part) {
    const MatmulGroup& group = groups_[part.group];
    const Node& one = graph_.node(i);
    const MatmulTensor& first = group.members.front().*part.which;
    const MatmulTensor& last = group.members.back().*part.which;
    Graph& to = rewriter_.to;
    const auto* of_weight = one.as<LinearGradWeight>();
    const Value grad = of_weight != nullptr
                           ? to.apply(*of_weight, {rewriter_(one.in[0]), grads(part.group)})
                           : to.apply(LinearGradBias{}, {grads(part.group)});
    StateDecl joint = graph_.states()[first.gradient];
    joint.name += ".." + graph_.states()[last.gradient].name;
    joint.type = to.type(grad);
    to.accumulate(grad, to.read(graph_.states().declare_once(joint)), one.accumulations[0].mode);
    to.mutable_node(grad.node).when = one.when;
  }

  // Emits what remains of a sum.
  void put_sum(int32_t root, const MatmulSum& sum) {
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
    Value weight, bias, matmul, qkv, dy, dx;
  };

  const Graph& graph_;
  std::vector<MatmulGroup> groups_;
  std::map<int32_t, MatmulSum> sums_;
  std::vector<Merged> merged_;  // by group
  Rewriter rewriter_;
  std::map<int32_t, size_t> group_of_;  // by input gradient
  // By the node that the merged one replaces:
  std::map<int32_t, size_t> grad_input_at_, matmul_at_, activation_at_, packed_grad_at_;
  std::map<int32_t, Part> grad_at_;
  std::map<int32_t, std::vector<Part>> tensor_at_;
  std::set<int32_t> is_gone_;
};

}  // namespace

Graph merge_matmuls(const Graph& graph, std::vector<std::string>& notes) {
  MatmulGroups found = find_matmul_groups(graph, notes);
  if (found.groups.empty()) return graph;
  return Merger(graph, std::move(found)).run();
}

}  // namespace tokamak
