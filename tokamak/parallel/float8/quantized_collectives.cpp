#include "tokamak/parallel/float8/quantized_collectives.h"

#include <optional>
#include <utility>
#include <vector>

#include "tokamak/ops/comm/collective.h"
#include "tokamak/ops/matmul/linear.h"

namespace tokamak {
namespace {

struct QuantizedReader {
  QuantizedCollective gathered;
  bool transposes = false;
};

template <class T>
const T* as_float8(const Node& n) {
  const T* op = n.as<T>();
  return op != nullptr && op->low_precision ? op : nullptr;
}

// Returns how `n` multiplies quantized values of its input `k`, if it does and that is no weight.
std::optional<QuantizedReader> quantized_reader(const Node& n, size_t k) {
  if (const auto* op = as_float8<Linear>(n); op != nullptr && k == 0)
    return QuantizedReader{.gathered = {.role = Float8Role::kX, .module = op->module}};
  if (const auto* op = as_float8<LinearGradInput>(n); op != nullptr && k == 0)
    return QuantizedReader{.gathered = {.role = Float8Role::kG, .module = op->module}};
  if (const auto* op = as_float8<LinearGradWeight>(n); op != nullptr && k < 2) {
    const Float8Role role = k == 0 ? Float8Role::kX : Float8Role::kG;
    return QuantizedReader{.gathered = {.role = role, .module = op->module}, .transposes = true};
  }
  return std::nullopt;
}

using Readers = std::vector<std::pair<int32_t, size_t>>;  // who, at which input

// Returns what the readers of gather `i` multiply, if that is quantized values alone.
std::optional<QuantizedCollective> collective_for(const Graph& graph, int32_t i,
                                                  const Readers& readers) {
  std::optional<QuantizedCollective> gathered;
  for (const auto& [j, k] : readers) {
    const auto reader = j < 0 ? std::nullopt : quantized_reader(graph.node(j), k);
    if (!reader || (reader->transposes && rows_of(graph.type({i, 0})) % 16 != 0) ||
        (gathered && gathered->role != reader->gathered.role))
      return std::nullopt;
    gathered = reader->gathered;
  }
  return gathered;
}

}  // namespace

std::map<int32_t, QuantizedCollective> find_quantized_collectives(const Graph& graph,
                                                                  const Float8Recipe& recipe,
                                                                  const CommGroup& tp) {
  using enum ScaleGrid;
  if (tp.size == 1 || !recipe.has_dw || recipe.x_of_y != kTensor || recipe.g_of_dx != kTensor ||
      recipe.of_dw != kTensor)
    return {};
  std::vector<Readers> readers(static_cast<size_t>(graph.size()));
  for (int32_t i = 0; i < graph.size(); ++i) {
    for (size_t k = 0; k < graph.node(i).in.size(); ++k) {
      if (const Value v = graph.node(i).in[k]; v.valid()) readers[v.node].emplace_back(i, k);
    }
    for (const Accumulation& a : graph.node(i).accumulations)
      readers[a.into.node].emplace_back(-1, 0);
  }
  for (const Value v : graph.roots) readers[v.node].emplace_back(-1, 0);
  std::map<int32_t, QuantizedCollective> found;
  for (int32_t i = 0; i < graph.size(); ++i) {
    const auto* gather = graph.node(i).as<AllGather>();
    if (gather == nullptr || gather->dim < 0 || gather->group.size != tp.size ||
        !graph.node(i).accumulations.empty())
      continue;
    if (auto gathered = collective_for(graph, i, readers[i]))
      found.emplace(i, std::move(*gathered));
  }
  return found;
}

}  // namespace tokamak
