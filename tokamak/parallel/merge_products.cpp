#include "tokamak/parallel/merge_products.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tokamak/graph/rewriter.h"
#include "tokamak/ops/add.h"
#include "tokamak/ops/linear.h"
#include "tokamak/ops/reshape.h"
#include "tokamak/ops/rope.h"
#include "tokamak/ops/slice_rows.h"
#include "tokamak/ops/swiglu.h"

namespace tokamak {
namespace {

// One weight's part in a merged product.
struct Member {
  int32_t grad_input = -1;   // node
  int32_t grad_weight = -1;  // node
  Value dy;
  Value weight;
  int64_t begin = 0;  // of the weight in its bucket
  int64_t end = 0;
};

// Members in the order in which their weights lie.
struct Group {
  std::vector<Member> members;
  AnyOp packer;  // yields the output gradients side by side
  std::vector<Value> packer_in;
  int32_t packed_grad = -1;       // or the node that does, once it is packed
  std::vector<int32_t> products;  // of the forward, merged too
  int32_t activation = -1;        // the node that reads them
};

// A sum of input gradients.
struct Tree {
  int32_t root = -1;
  std::vector<Value> terms;     // in order
  std::vector<int32_t> inside;  // the sums, the root among them
};

class Merger {
 public:
  Merger(const Graph& graph, std::vector<std::string>& notes)
      : graph_(graph), notes_(notes), rewriter_(graph) {}

  Graph run() {
    find_readers();
    for (int32_t i = 0; i < graph_.size(); ++i) {
      if (is_root(i)) find_groups(i);
    }
    if (groups_.empty()) return graph_;
    index_groups();
    for (int32_t i = 0; i < graph_.size(); ++i) put(i);
    return rewriter_.finish();
  }

 private:
  // What there is.

  void find_readers() {
    for (int32_t i = 0; i < graph_.size(); ++i)
      for_each_use(graph_.node(i), [&](Value v) { readers_[v].push_back(i); });
  }

  const std::vector<int32_t>& readers(Value v) const {
    static const std::vector<int32_t> kNone;
    const auto it = readers_.find(v);
    return it == readers_.end() ? kNone : it->second;
  }

  bool is_plain_sum(int32_t i) const {
    const Node& n = graph_.node(i);
    return n.as<Add>() != nullptr && n.accumulations.empty() && n.stream == 0;
  }

  // A sum that is part of no other of the same label.
  bool is_root(int32_t i) const {
    if (!is_plain_sum(i)) return false;
    const auto& of = readers({i, 0});
    return of.size() != 1 || !is_plain_sum(of[0]) ||
           graph_.node(of[0]).label != graph_.node(i).label;
  }

  void collect(int32_t i, Tree& tree) const {
    tree.inside.push_back(i);
    for (const Value v : graph_.node(i).in) {
      const bool is_inside = is_plain_sum(v.node) && readers(v).size() == 1 &&
                             graph_.producer(v).label == graph_.node(i).label;
      is_inside ? collect(v.node, tree) : tree.terms.push_back(v);
    }
  }

  // Why `term` of a sum cannot be merged with others, or "" and its member.
  std::string member_of(Value term, const Label& label, Member& member) const {
    const Node& product = graph_.producer(term);
    member = {.grad_input = term.node, .dy = product.in[0], .weight = product.in[1]};
    if (product.label != label || !product.accumulations.empty() || readers(term).size() != 1)
      return "its input gradient has another use";
    const Node& w = graph_.producer(member.weight);
    const auto* rows = w.as<Reshape>() ? graph_.producer(w.in[0]).as<SliceRows>() : nullptr;
    if (rows == nullptr) return "lies in no bucket";
    member.begin = rows->begin;
    member.end = rows->end;
    for (const int32_t i : readers(member.dy)) {
      if (i == term.node) continue;
      if (graph_.node(i).as<LinearGradWeight>() == nullptr || member.grad_weight >= 0)
        return "its output gradient is not read by products alone";
      member.grad_weight = i;
    }
    if (member.grad_weight < 0) return "its gradient is of another output gradient";
    const Node& dw = graph_.node(member.grad_weight);
    if (dw.label != label || dw.accumulations.size() != 1 ||
        !readers({member.grad_weight, 0}).empty())
      return "its gradient is not one product";
    const Node& into = graph_.producer(dw.accumulations[0].into);
    if (!into.is_leaf() || !window(into.state).window_of.valid())
      return "its gradient is not one product";
    return {};
  }

  const StateDecl& window(StateId id) const { return graph_.states()[id]; }

  const StateDecl& gradient_of(const Member& m) const {
    return window(graph_.producer(graph_.node(m.grad_weight).accumulations[0].into).state);
  }

  Value bucket_of(const Member& m) const {
    return graph_.producer(graph_.producer(m.weight).in[0]).in[0];
  }

  // Whether b's weight comes right after a's, and so does its gradient.
  bool are_neighbours(const Member& a, const Member& b) const {
    const Node& da = graph_.node(a.grad_weight);
    const Node& db = graph_.node(b.grad_weight);
    const StateDecl& ga = gradient_of(a);
    const StateDecl& gb = gradient_of(b);
    return bucket_of(a) == bucket_of(b) && a.end == b.begin && da.in[0] == db.in[0] &&
           da.accumulations[0].mode == db.accumulations[0].mode && da.when == db.when &&
           ga.window_of == gb.window_of && ga.window_begin + ga.type.numel() == gb.window_begin &&
           ga.type.dims.back() == gb.type.dims.back() && ga.kind == gb.kind;
  }

  // What is to be done.

  void find_groups(int32_t root) {
    Tree tree{.root = root};
    collect(root, tree);
    const auto is_product = [&](Value v) {
      return graph_.producer(v).as<LinearGradInput>() != nullptr;
    };
    if (std::count_if(tree.terms.begin(), tree.terms.end(), is_product) < 2) return;
    std::vector<Member> members;
    std::string reason;
    for (const Value term : tree.terms) {
      if (!is_product(term)) continue;
      members.emplace_back();
      const std::string why = member_of(term, graph_.node(root).label, members.back());
      if (!why.empty()) reason = fmt::format("{}: {}", shape_of(members.back()), why);
    }
    if (!reason.empty()) return note(std::move(reason));
    std::stable_sort(members.begin(), members.end(),
                     [](const Member& a, const Member& b) { return a.begin < b.begin; });
    bool any = false;
    for (size_t begin = 0; begin < members.size();) {
      size_t end = begin + 1;
      while (end < members.size() && are_neighbours(members[end - 1], members[end])) ++end;
      if (end - begin > 1) {
        Group group{.members = {members.begin() + static_cast<std::ptrdiff_t>(begin),
                                members.begin() + static_cast<std::ptrdiff_t>(end)}};
        any = add_group(std::move(group)) || any;
      } else if (members.size() > 1) {
        note(fmt::format("{}: none of the others lies beside it", shape_of(members[begin])));
      }
      begin = end;
    }
    if (any) trees_[root] = std::move(tree);
  }

  bool add_group(Group group) {
    std::vector<std::string> shapes;
    for (const Member& m : group.members) shapes.push_back(shape_of(m));
    const std::string which = fmt::format("{}", fmt::join(shapes, " + "));
    if (pack_gates(group) || pack_heads(group)) {
      note(fmt::format("{}: gradients as one product{}", which,
                       group.products.empty() ? "" : ", forward too"));
      groups_.push_back(std::move(group));
      return true;
    }
    note(fmt::format("{}: nothing writes their output gradients side by side", which));
    return false;
  }

  std::string shape_of(const Member& m) const { return to_string(graph_.type(m.weight).dims); }

  void note(std::string text) {
    text = "merged products: " + std::move(text);
    if (std::find(notes_.begin(), notes_.end(), text) == notes_.end())
      notes_.push_back(std::move(text));
  }

  // The gradients of gate and up.
  bool pack_gates(Group& group) const {
    const Value dgate = group.members[0].dy;
    const Node& grad = graph_.producer(dgate);
    const auto* op = grad.as<SwigluGrad>();
    if (group.members.size() != 2 || op == nullptr || op->packed || op->emits_y || dgate.out != 0 ||
        group.members[1].dy != Value{dgate.node, 1})
      return false;
    std::set<int32_t> activations;
    for (const Value v : {grad.in[0], grad.in[1]}) {
      const Node& product = graph_.producer(v);
      if (product.as<Linear>() == nullptr || product.in.size() != 2 || product.stream != 0)
        return false;
      for (const int32_t i : readers(v)) {
        if (i == dgate.node) continue;
        const Node& n = graph_.node(i);
        if (n.as<Swiglu>() == nullptr || n.in != std::vector{grad.in[0], grad.in[1]}) return false;
        activations.insert(i);
      }
      group.products.push_back(v.node);
    }
    const Node& gate = graph_.node(group.products[0]);
    const Node& up = graph_.node(group.products[1]);
    if (activations.size() != 1 || gate.in[0] != up.in[0] || gate.label != up.label ||
        gate.in[1] != group.members[0].weight || up.in[1] != group.members[1].weight)
      return false;
    group.activation = *activations.begin();
    group.packed_grad = dgate.node;
    return true;
  }

  // Heads of [B, S, H, D] that only lose their dims, some after the same rotation.
  bool pack_heads(Group& group) const {
    constexpr size_t kMost = 4;
    if (group.members.size() > kMost) return false;
    RopeConcat op;
    Value positions;
    for (size_t k = 0; k < group.members.size(); ++k) {
      const Value dy = group.members[k].dy;
      const Node& flat = graph_.producer(dy);
      if (flat.as<Reshape>() == nullptr || graph_.type(flat.in[0]).dims.size() != 4 ||
          graph_.type(dy).dims.size() != 3 ||
          graph_.type(flat.in[0]).dims[1] != graph_.type(dy).dims[1])
        return false;
      Value heads = flat.in[0];
      const Node& node = graph_.producer(heads);
      if (const Rope* rope = node.as<Rope>()) {
        const bool is_first = k == 0;
        if (readers(heads).size() != 1 || op.num_turned != static_cast<int>(k) ||
            (!is_first && (op.rope != *rope || positions != node.in[1])))
          return false;
        op.rope = *rope;
        positions = node.in[1];
        heads = node.in[0];
        ++op.num_turned;
      }
      group.packer_in.push_back(heads);
    }
    // Without a rotation this would be a copy of all.
    if (op.num_turned == 0) return false;
    group.packer_in.push_back(positions);
    group.packer = any_op(op);
    return true;
  }

  // The new graph.

  void index_groups() {
    for (size_t g = 0; g < groups_.size(); ++g) {
      const Group& group = groups_[g];
      int32_t last_input = -1;
      int32_t last_weight = -1;
      int32_t last_slice = -1;
      for (const Member& m : group.members) {
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
    for (const auto& [root, tree] : trees_) is_gone_.insert(tree.inside.begin(), tree.inside.end());
    merged_.resize(groups_.size());
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
    if (const auto at = trees_.find(i); at != trees_.end()) return put_sum(at->second);
    if (is_gone_.contains(i)) return;
    rewriter_.copy(i);
    if (const auto at = weight_at_.find(i); at != weight_at_.end()) {
      for (const size_t g : at->second) put_weight(i, g);
    }
  }

  // The weights as one matrix, thrown away and gathered again as its parts are.
  void put_weight(int32_t like, size_t g) {
    const std::vector<Member>& members = groups_[g].members;
    Graph& to = rewriter_.to;
    const LabelScope scope(to, graph_.node(like).label);
    const Value flat = rewriter_(bucket_of(members[0]));
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
    const Group& group = groups_[g];
    const Node& one = graph_.node(i);
    const Value dw = rewriter_.to.apply(LinearGradWeight{}, {rewriter_(one.in[0]), grads(g)});
    StateDecl joint = gradient_of(group.members.front());
    joint.name += ".." + gradient_of(group.members.back()).name;
    joint.type = rewriter_.to.type(dw);
    const Value into = rewriter_.to.read(graph_.states().declare_once(joint));
    rewriter_.to.accumulate(dw, into, one.accumulations[0].mode);
    rewriter_.to.mutable_node(dw.node).when = one.when;
  }

  // What is left of a sum.
  void put_sum(const Tree& tree) {
    Value total;
    std::set<size_t> added;
    for (const Value term : tree.terms) {
      const auto group = group_of_.find(term.node);
      if (group != group_of_.end() && !added.insert(group->second).second) continue;
      const Value v = group == group_of_.end() ? rewriter_(term) : merged_[group->second].dx;
      total = total.valid() ? rewriter_.to.apply(Add{}, {total, v}) : v;
    }
    rewriter_.map({tree.root, 0}, total);
  }

  struct Merged {
    Value weight, product, dy, dx;
  };

  const Graph& graph_;
  std::vector<std::string>& notes_;
  Rewriter rewriter_;
  std::map<Value, std::vector<int32_t>> readers_;
  std::vector<Group> groups_;
  std::vector<Merged> merged_;          // by group
  std::map<int32_t, Tree> trees_;       // by root
  std::map<int32_t, size_t> group_of_;  // by input gradient
  // By the node in whose place a merged one comes:
  std::map<int32_t, size_t> grad_input_at_, grad_weight_at_, product_at_, activation_at_,
      packed_grad_at_;
  std::map<int32_t, std::vector<size_t>> weight_at_;
  std::set<int32_t> is_gone_;
};

}  // namespace

Graph merge_products(const Graph& graph, std::vector<std::string>& notes) {
  return Merger(graph, notes).run();
}

}  // namespace tokamak
