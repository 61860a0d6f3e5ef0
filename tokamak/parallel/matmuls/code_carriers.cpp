#include "tokamak/parallel/matmuls/code_carriers.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "tokamak/ops/comm/collective.h"
#include "tokamak/ops/layout/pack.h"
#include "tokamak/ops/matmul/linear.h"

namespace tokamak {
namespace {

struct CodeReader {
  Float8Role role = Float8Role::kX;
  std::string module;
  bool transposes = false;
};

template <class T>
const T* as_float8(const Node& n) {
  const T* op = n.as<T>();
  return op != nullptr && op->float8 ? op : nullptr;
}

// Returns how `n` multiplies codes of its input `k`, if it does and that is no weight.
std::optional<CodeReader> code_reader(const Node& n, size_t k) {
  if (const auto* op = as_float8<Linear>(n); op != nullptr && k == 0)
    return CodeReader{.role = Float8Role::kX, .module = op->module};
  if (const auto* op = as_float8<LinearGradInput>(n); op != nullptr && k == 0)
    return CodeReader{.role = Float8Role::kG, .module = op->module};
  if (const auto* op = as_float8<LinearGradWeight>(n); op != nullptr && k < 2) {
    return CodeReader{
        .role = k == 0 ? Float8Role::kX : Float8Role::kG, .module = op->module, .transposes = true};
  }
  return std::nullopt;
}

class CarrierFinder {
 public:
  CarrierFinder(const Graph& graph, const CommGroup& tp)
      : graph_(graph), tp_(tp), readers_(static_cast<size_t>(graph.size())) {
    for (int32_t i = 0; i < graph.size(); ++i) {
      for (size_t k = 0; k < graph.node(i).in.size(); ++k) {
        if (const Value v = graph.node(i).in[k]; v.valid()) readers_[v.node].emplace_back(i, k);
      }
      for (const Accumulation& a : graph.node(i).accumulations)
        readers_[a.into.node].emplace_back(i, graph.node(i).in.size());
    }
    for (const Value v : graph.roots) readers_[v.node].emplace_back(-1, 0);
  }

  std::map<int32_t, CarriedCodes> run() {
    for (int32_t i = 0; i < graph_.size(); ++i) {
      if (const std::optional<Value> origin = origin_of_rows(graph_.node(i)))
        found_[i] = {.origin = *origin, .role = {}, .module = {}};
    }
    // Who loses a reader of codes, or a part, carries none either.
    for (size_t before = found_.size() + 1; found_.size() < before;) {
      before = found_.size();
      for (auto at = found_.end(); at != found_.begin();) {
        --at;
        if (!has_only_codes(at->first, at->second)) at = found_.erase(at);
      }
    }
    return std::move(found_);
  }

 private:
  Value origin(Value v) const {
    const auto carrier = found_.find(v.node);
    return carrier == found_.end() ? v : carrier->second.origin;
  }

  // Returns what the rows come from that `n` moves, if it does nothing else.
  std::optional<Value> origin_of_rows(const Node& n) const {
    const auto* gather = n.as<AllGather>();
    const auto* shift = n.as<Shift>();
    const auto* part = n.as<SliceDim>();
    const auto* join = n.as<ConcatDim>();
    const bool moves = (gather != nullptr && gather->dim >= 0 && gather->group.size == tp_.size) ||
                       (shift != nullptr && shift->group.size == tp_.size) ||
                       (part != nullptr && part->zeros == 0 && is_of_rows(n, part->dim)) ||
                       (join != nullptr && is_of_rows(n, join->dim));
    if (!moves || !n.accumulations.empty()) return std::nullopt;
    const Value from = origin(n.in[0]);
    const bool is_one =
        std::all_of(n.in.begin(), n.in.end(), [&](Value v) { return origin(v) == from; });
    return is_one ? std::optional(from) : std::nullopt;
  }

  static bool is_of_rows(const Node& n, int dim) { return dim + 1 < std::ssize(n.out[0].dims); }

  bool has_only_codes(int32_t i, CarriedCodes& codes) const {
    const Node& n = graph_.node(i);
    const bool has_parts = std::all_of(n.in.begin(), n.in.end(), [&](Value v) {
      return v == codes.origin || found_.contains(v.node);
    });
    if (!has_parts || readers_[i].empty()) return false;
    codes.module.clear();
    for (const auto& [j, k] : readers_[i]) {
      if (j < 0) return false;
      std::optional<CodeReader> reader = code_reader(graph_.node(j), k);
      if (!reader) {
        const auto other = found_.find(j);
        if (other == found_.end()) return false;
        reader = {.role = other->second.role, .module = other->second.module};
      }
      if (reader->transposes && rows_of(n.out[0]) % 16 != 0) return false;
      if (!codes.module.empty() && codes.role != reader->role) return false;
      codes.role = reader->role;
      codes.module = reader->module;
    }
    return true;
  }

  const Graph& graph_;
  const CommGroup& tp_;
  std::vector<std::vector<std::pair<int32_t, size_t>>> readers_;  // by node: who, at which input
  std::map<int32_t, CarriedCodes> found_;
};

}  // namespace

std::map<int32_t, CarriedCodes> find_code_carriers(const Graph& graph, const Float8Recipe& recipe,
                                                   const CommGroup& tp) {
  using enum ScaleGrid;
  if (tp.size == 1 || !recipe.has_dw || recipe.x_of_y != kTensor || recipe.g_of_dx != kTensor ||
      recipe.of_dw != kTensor)
    return {};
  return CarrierFinder(graph, tp).run();
}

bool crosses_ranks(const Node& node) {
  return node.as<AllGather>() != nullptr || node.as<Shift>() != nullptr;
}

}  // namespace tokamak
