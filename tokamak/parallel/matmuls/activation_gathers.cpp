#include "tokamak/parallel/matmuls/activation_gathers.h"

#include "tokamak/ops/comm/collective.h"
#include "tokamak/ops/matmul/linear.h"

namespace tokamak {
namespace {

template <class T>
bool is_float8(const Node& n) {
  const T* op = n.as<T>();
  return op != nullptr && op->float8;
}

// Returns the format in which `n` multiplies its input `k`; kF32 if it reads values or a weight.
DType format_of(const Node& n, size_t k, const Float8Recipe& recipe) {
  const bool has_x = is_float8<Linear>(n) || is_float8<LinearGradWeight>(n);
  if (k == 0 && has_x) return DType::kE4M3;
  const bool is_g =
      is_float8<LinearGradInput>(n) ? k == 0 : k == 1 && is_float8<LinearGradWeight>(n);
  return is_g ? recipe.gradient : DType::kF32;
}

}  // namespace

std::map<int32_t, DType> find_code_gathers(const Graph& graph, const Float8Recipe& recipe,
                                           const CommGroup& tp) {
  using enum ScaleGrid;
  if (tp.size == 1 || !recipe.has_dw || recipe.x_of_y != kTensor || recipe.g_of_dx != kTensor ||
      recipe.of_dw != kTensor)
    return {};
  std::map<int32_t, DType> found;
  for (int32_t i = 0; i < graph.size(); ++i) {
    const Node& n = graph.node(i);
    for (size_t k = 0; k < n.in.size(); ++k) {
      if (!n.in[k].valid()) continue;
      const auto* gather = graph.producer(n.in[k]).as<AllGather>();
      if (gather == nullptr || gather->dim < 0 || gather->group.size != tp.size) continue;
      const DType format = format_of(n, k, recipe);
      DType& known = found.emplace(n.in[k].node, format).first->second;
      if (known != format) known = DType::kF32;
    }
  }
  for (const Value v : graph.roots) found.erase(v.node);
  std::erase_if(found, [&](const auto& gather) {
    return !is_float8(gather.second) || rows_of(graph.node(gather.first).out[0]) % 16 != 0;
  });
  return found;
}

}  // namespace tokamak
