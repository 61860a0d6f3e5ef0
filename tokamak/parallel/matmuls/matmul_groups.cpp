#include "tokamak/parallel/matmuls/matmul_groups.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tokamak/ops/attention/rope.h"
#include "tokamak/ops/elementwise/add.h"
#include "tokamak/ops/elementwise/cast.h"
#include "tokamak/ops/elementwise/swiglu.h"
#include "tokamak/ops/layout/reshape.h"
#include "tokamak/ops/layout/slice_rows.h"
#include "tokamak/ops/matmul/linear.h"
#include "tokamak/ops/norm/norm.h"
#include "tokamak/parallel/matmuls/packed_heads.h"

namespace tokamak {
namespace {

class Finder {
 public:
  Finder(const Graph& graph, std::vector<std::string>& notes) : graph_(graph), notes_(notes) {}

  MatmulGroups run() {
    find_readers();
    for (int32_t i = 0; i < graph_.size(); ++i) {
      if (is_root(i)) find_groups(i);
    }
    return std::move(out_);
  }

 private:
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

  // Whether node `i` is a sum that is part of no other sum of the same label.
  bool is_root(int32_t i) const {
    if (!is_plain_sum(i)) return false;
    const auto& of = readers({i, 0});
    return of.size() != 1 || !is_plain_sum(of[0]) ||
           graph_.node(of[0]).label != graph_.node(i).label;
  }

  void collect(int32_t i, MatmulSum& sum) const {
    sum.inside.push_back(i);
    for (const Value v : graph_.node(i).in) {
      const bool is_inside = is_plain_sum(v.node) && readers(v).size() == 1 &&
                             graph_.producer(v).label == graph_.node(i).label;
      is_inside ? collect(v.node, sum) : sum.terms.push_back(v);
    }
  }

  // Returns why `term` of a sum cannot be merged with others, or "" and sets `member`.
  std::string member_of(Value term, const Label& label, MatmulMember& member) const {
    const Node& matmul = graph_.producer(term);
    member = {.grad_input = term.node, .dy = matmul.in[0], .weight = {.value = matmul.in[1]}};
    if (matmul.label != label || !matmul.accumulations.empty() || readers(term).size() != 1)
      return "its input gradient has another use";
    if (!lies_in_bucket(member.weight)) return "lies in no bucket";
    for (const int32_t i : readers(member.dy)) {
      if (i == term.node) continue;
      const Node& reader = graph_.node(i);
      const bool is_of_weight = reader.as<LinearGradWeight>() != nullptr;
      MatmulTensor& of = is_of_weight ? member.weight : member.bias;
      if ((!is_of_weight && reader.as<LinearGradBias>() == nullptr) || of.grad >= 0)
        return "its output gradient is not read by products alone";
      of.grad = i;
      if (!adds_to_window(of, label)) return "its gradient is not one product";
    }
    return member.weight.grad < 0 ? "its gradient is of another output gradient" : "";
  }

  bool lies_in_bucket(MatmulTensor& t) const {
    // A part may be cast by itself, after it was cut out.
    const Node* part = &graph_.producer(t.value);
    if (part->as<Cast>() != nullptr) part = &graph_.producer(part->in[0]);
    const Node& n = *part;
    const auto* rows = n.as<Reshape>() ? graph_.producer(n.in[0]).as<SliceRows>() : nullptr;
    if (rows == nullptr) return false;
    t.bucket = graph_.producer(n.in[0]).in[0];
    t.begin = rows->begin;
    t.end = rows->end;
    return true;
  }

  bool adds_to_window(MatmulTensor& t, const Label& label) const {
    const Node& grad = graph_.node(t.grad);
    if (grad.label != label || grad.accumulations.size() != 1 || !readers({t.grad, 0}).empty())
      return false;
    const Node& into = graph_.producer(grad.accumulations[0].into);
    if (!into.is_leaf() || !state(into.state).window_of.valid()) return false;
    t.gradient = into.state;
    return true;
  }

  const StateDecl& state(StateId id) const { return graph_.states()[id]; }

  // Whether b's gradient comes right after a's.
  bool have_neighbouring_gradients(const MatmulTensor& a, const MatmulTensor& b) const {
    const Node& da = graph_.node(a.grad);
    const Node& db = graph_.node(b.grad);
    const StateDecl& ga = state(a.gradient);
    const StateDecl& gb = state(b.gradient);
    return da.accumulations[0].mode == db.accumulations[0].mode && da.when == db.when &&
           ga.window_of == gb.window_of && ga.window_begin + ga.type.numel() == gb.window_begin &&
           ga.kind == gb.kind;
  }

  // Whether b's weight comes right after a's, and so do its gradient and the bias's.
  bool are_neighbours(const MatmulMember& a, const MatmulMember& b) const {
    const bool have_biases = a.bias.grad >= 0;
    return a.weight.bucket == b.weight.bucket && a.weight.end == b.weight.begin &&
           graph_.node(a.grad_input).as<LinearGradInput>()->low_precision ==
               graph_.node(b.grad_input).as<LinearGradInput>()->low_precision &&
           graph_.node(a.weight.grad).in[0] == graph_.node(b.weight.grad).in[0] &&
           graph_.type(a.weight.value).dims[1] == graph_.type(b.weight.value).dims[1] &&
           have_neighbouring_gradients(a.weight, b.weight) && have_biases == (b.bias.grad >= 0) &&
           (!have_biases || have_neighbouring_gradients(a.bias, b.bias));
  }

  void find_groups(int32_t root) {
    MatmulSum sum;
    collect(root, sum);
    const auto is_matmul = [&](Value v) {
      return graph_.producer(v).as<LinearGradInput>() != nullptr;
    };
    if (std::count_if(sum.terms.begin(), sum.terms.end(), is_matmul) < 2) return;
    std::vector<MatmulMember> members;
    std::string reason;
    for (const Value term : sum.terms) {
      if (!is_matmul(term)) continue;
      members.emplace_back();
      const std::string why = member_of(term, graph_.node(root).label, members.back());
      if (!why.empty()) reason = fmt::format("{}: {}", shape_of(members.back()), why);
    }
    if (!reason.empty()) return note(std::move(reason));
    std::stable_sort(members.begin(), members.end(),
                     [](const MatmulMember& a, const MatmulMember& b) {
                       return a.weight.begin < b.weight.begin;
                     });
    bool any = false;
    for (size_t begin = 0; begin < members.size();) {
      size_t end = begin + 1;
      while (end < members.size() && are_neighbours(members[end - 1], members[end])) ++end;
      if (end - begin > 1) {
        MatmulGroup group{.members = {members.begin() + static_cast<std::ptrdiff_t>(begin),
                                      members.begin() + static_cast<std::ptrdiff_t>(end)}};
        any = add_group(std::move(group)) || any;
      } else if (members.size() > 1) {
        note(fmt::format("{}: none of the others is adjacent to it", shape_of(members[begin])));
      }
      begin = end;
    }
    if (any) out_.sums[root] = std::move(sum);
  }

  bool add_group(MatmulGroup group) {
    std::vector<std::string> shapes;
    for (const MatmulMember& m : group.members) shapes.push_back(shape_of(m));
    const std::string which = fmt::format("{}", fmt::join(shapes, " + "));
    std::string apart;
    if (pack_gates(group) || pack_attention(group, apart) || pack_heads(group)) {
      note(fmt::format("{}: gradients as one product, forward {}", which,
                       group.matmuls.empty() ? "apart: " + apart : "too"));
      out_.groups.push_back(std::move(group));
      return true;
    }
    note(fmt::format("{}: {}", which,
                     is_normed(group) ? "heads are normed between the matmuls and attention"
                                      : "nothing writes their output gradients side by side"));
    return false;
  }

  // Whether a member's output gradient is that of a norm over heads.
  bool is_normed(const MatmulGroup& group) const {
    return std::any_of(group.members.begin(), group.members.end(), [&](const MatmulMember& m) {
      const Node& flat = graph_.producer(m.dy);
      return flat.as<Reshape>() != nullptr && graph_.producer(flat.in[0]).as<RmsNormGrad>();
    });
  }

  std::string shape_of(const MatmulMember& m) const {
    return to_string(graph_.type(m.weight.value).dims);
  }

  void note(std::string text) {
    text = "merged products: " + std::move(text);
    if (std::find(notes_.begin(), notes_.end(), text) == notes_.end())
      notes_.push_back(std::move(text));
  }

  // Packs the gradients of gate and up.
  bool pack_gates(MatmulGroup& group) const {
    const Value dgate = group.members[0].dy;
    const Node& grad = graph_.producer(dgate);
    const auto* op = grad.as<SwigluGrad>();
    if (group.members.size() != 2 || op == nullptr || op->packed || op->emits_y || dgate.out != 0 ||
        group.members[1].dy != Value{dgate.node, 1})
      return false;
    std::set<int32_t> activations;
    std::vector<int32_t> matmuls;
    for (const Value v : {grad.in[0], grad.in[1]}) {
      for (const int32_t i : readers(v)) {
        if (i == dgate.node) continue;
        const Node& n = graph_.node(i);
        if (n.as<Swiglu>() == nullptr || n.in != std::vector{grad.in[0], grad.in[1]}) return false;
        activations.insert(i);
      }
      matmuls.push_back(v.node);
    }
    if (activations.size() != 1 || !merge_forward(group, matmuls)) return false;
    group.activation = *activations.begin();
    group.packed_grad = dgate.node;
    return true;
  }

  // Whether these matmuls of the members' weights, in order, can be merged into one.
  bool merge_forward(MatmulGroup& group, const std::vector<int32_t>& matmuls) const {
    std::vector<MatmulTensor> biases;
    const Node& first = graph_.node(matmuls[0]);
    for (size_t k = 0; k < matmuls.size(); ++k) {
      const Node& n = graph_.node(matmuls[k]);
      const auto* op = n.as<Linear>();
      if (op == nullptr || !op->adds_bias || n.stream != 0 || n.in[0] != first.in[0] ||
          n.in.size() != first.in.size() || n.label != first.label || !n.accumulations.empty() ||
          n.in[1] != group.members[k].weight.value)
        return false;
      if (n.in.size() < 3) continue;
      MatmulTensor& bias = biases.emplace_back(MatmulTensor{.value = n.in[2]});
      if (!lies_in_bucket(bias) || bias.bucket != biases[0].bucket ||
          (k > 0 && biases[k - 1].end != bias.begin))
        return false;
    }
    for (size_t k = 0; k < biases.size(); ++k) {
      MatmulTensor& bias = group.members[k].bias;
      biases[k].grad = bias.grad;
      biases[k].gradient = bias.gradient;
      bias = biases[k];
    }
    group.matmuls = matmuls;
    return true;
  }

  // Packs queries, keys and values if one attention reads all three.
  bool pack_attention(MatmulGroup& group, std::string& why) const {
    std::vector<Value> dy;
    for (const MatmulMember& m : group.members) dy.push_back(m.dy);
    std::vector<int32_t> matmuls;
    auto heads = find_packed_heads(graph_, readers_, dy, matmuls, why);
    if (!heads) return false;
    if (!merge_forward(group, matmuls)) {
      why = "their biases do not lie side by side";
      return false;
    }
    group.heads = std::move(heads);
    return true;
  }

  // Packs heads of [B, S, H, D] that are only reshaped, some after the same rotation.
  bool pack_heads(MatmulGroup& group) const {
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
    // Without a rotation this would copy everything.
    if (op.num_turned == 0) return false;
    group.packer_in.push_back(positions);
    group.packer = any_op(op);
    return true;
  }

  const Graph& graph_;
  std::vector<std::string>& notes_;
  ValueReaders readers_;
  MatmulGroups out_;
};

}  // namespace

MatmulGroups find_matmul_groups(const Graph& graph, std::vector<std::string>& notes) {
  return Finder(graph, notes).run();
}

}  // namespace tokamak
