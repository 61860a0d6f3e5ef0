#include "tokamak/parallel/matmuls/packed_heads.h"

#include "tokamak/ops/attention/attention.h"
#include "tokamak/ops/layout/reshape.h"

namespace tokamak {
namespace {

// Leads from a value back to one that differs only by its dims and a rotation.
struct Path {
  Value from;
  const Node* rope = nullptr;
  std::vector<int32_t> nodes;
};

class PathFinder {
 public:
  PathFinder(const Graph& graph, const ValueReaders& readers) : graph_(graph), readers_(readers) {}

  // Leads from attention's operand `v` to a matmul's output, which is split into heads before the
  // rotation.
  std::optional<Path> to_matmul(Value v) const {
    Path path{.from = v};
    if (!pass_rope(path) || !pass_heads(path, 3)) return std::nullopt;
    return path;
  }

  // Leads from an output gradient to the gradient of attention's operand.
  std::optional<Path> to_gradient(Value v) const {
    Path path{.from = v};
    if (!pass_heads(path, 4) || !pass_rope(path)) return std::nullopt;
    return path;
  }

 private:
  // Goes back through the producer; returns whether nothing else reads the producer's input.
  bool step(Path& path) const {
    const Node& n = graph_.producer(path.from);
    path.nodes.push_back(path.from.node);
    path.from = n.in[0];
    const auto readers = readers_.find(path.from);
    return n.stream == 0 && readers != readers_.end() && readers->second.size() == 1;
  }

  bool pass_rope(Path& path) const {
    const Node& n = graph_.producer(path.from);
    if (n.as<Rope>() == nullptr) return true;
    path.rope = &n;
    return step(path);
  }

  // Goes back over a reshape between [B, S, H D] and [B, S, H, D] whose input has `dims_before`
  // dims.
  bool pass_heads(Path& path, size_t dims_before) const {
    const Node& n = graph_.producer(path.from);
    if (n.as<Reshape>() == nullptr) return false;
    const Dims& before = graph_.type(n.in[0]).dims;
    const Dims& after = n.out[0].dims;
    return before.size() == dims_before && after.size() == 7 - dims_before &&
           before[0] == after[0] && before[1] == after[1] && step(path);
  }

  const Graph& graph_;
  const ValueReaders& readers_;
};

// Whether queries and keys have the same rotation, forward or backward, and values have none.
bool rotate_alike(const std::vector<Path>& paths) {
  const Node* q = paths[0].rope;
  const Node* k = paths[1].rope;
  if (paths[2].rope != nullptr || (q == nullptr) != (k == nullptr)) return false;
  return q == nullptr || (*q->as<Rope>() == *k->as<Rope>() && q->in[1] == k->in[1]);
}

}  // namespace

std::optional<PackedHeads> find_packed_heads(const Graph& graph, const ValueReaders& readers,
                                             const std::vector<Value>& dy,
                                             std::vector<int32_t>& matmuls, std::string& why) {
  const PathFinder finder(graph, readers);
  why = "no attention of this rank alone reads all three";
  if (dy.size() != 3) return std::nullopt;
  std::vector<Path> back;
  for (size_t k = 0; k < 3; ++k) {
    const auto path = finder.to_gradient(dy[k]);
    if (!path || path->from.out != static_cast<int32_t>(k)) return std::nullopt;
    back.push_back(*path);
    if (path->from.node != back[0].from.node) return std::nullopt;
  }
  PackedHeads heads{.gradient = back[0].from.node};
  const Node& gradient = graph.node(heads.gradient);
  const auto* op = gradient.as<AttentionGrad>();
  if (op == nullptr || op->forward.packed_kv_heads > 0 || gradient.stream != 0) return std::nullopt;
  heads.attention = gradient.in[3].node;
  const Node& attention = graph.node(heads.attention);
  if (attention.as<Attention>() == nullptr || attention.stream != 0) return std::nullopt;
  std::vector<Path> forth;
  for (size_t k = 0; k < 3; ++k) {
    const auto path = finder.to_matmul(attention.in[k]);
    if (!path || attention.in[k] != gradient.in[k] ||
        readers.at(attention.in[k]) != std::vector{heads.attention, heads.gradient})
      return std::nullopt;
    forth.push_back(*path);
    matmuls.push_back(path->from.node);
  }
  why = "queries and keys are not rotated alike";
  if (!rotate_alike(back) || !rotate_alike(forth) ||
      (back[0].rope == nullptr) != (forth[0].rope == nullptr))
    return std::nullopt;
  if (const Node* rope = forth[0].rope) {
    heads.rope = *rope->as<Rope>();
    heads.positions = rope->in[1];
    Rope inverse = *heads.rope;
    inverse.inverse = !inverse.inverse;
    if (*back[0].rope->as<Rope>() != inverse || back[0].rope->in[1] != heads.positions)
      return std::nullopt;
  }
  for (const auto* paths : {&back, &forth}) {
    for (const Path& path : *paths)
      heads.inside.insert(heads.inside.end(), path.nodes.begin(), path.nodes.end());
  }
  return heads;
}

}  // namespace tokamak
