// A fused op's test case as the ops that it consists of.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "tokamak/ops/float8/fused_float8.h"
#include "tokamak/ops/test_op_case.h"

namespace tokamak::testing {

/// Expands a fused op into the ops it replaces.
struct Apart {
  static constexpr std::string_view kName = "apart";
  FusedFloat8 op;

  Types infer(std::span<const TensorType> in) const { return op.infer(in); }

  std::vector<Strategy> place(std::span<const TensorType> in) const { return op.place(in); }

  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
    return op.cost(in, out);
  }

  std::vector<Value> expand(Graph& g, const Node& n) const {
    const auto num_in = static_cast<int64_t>(op.num_first_inputs(n.in.size()));
    const std::vector<Value> values =
        g.add_node(op.first.rules, op.first.op, {n.in.begin(), n.in.begin() + num_in});
    std::vector<Value> all;
    for (size_t k = 0; k < values.size(); ++k) {
      if (op.stores[k]) all.push_back(values[k]);
    }
    auto own = n.in.begin() + num_in;
    for (const Float8Reader& reader : op.readers) {
      std::vector<Value> in{values[reader.of]};
      for (size_t k = 0; k < reader.num_inputs(); ++k) in.push_back(*own++);
      std::visit(
          [&](const auto& made) {
            const std::vector<Value> out = g.add(made, in);
            all.insert(all.end(), out.begin(), out.end());
          },
          reader.op);
    }
    return all;
  }

  static std::span<const Variant> variants() { return {}; }
};

/// Returns a fused op's case as a composite of the ops apart, or nothing if the op is not fused.
inline std::optional<OpCase> apart(const OpCase& c) {
  if (c.rules != &kRules<FusedFloat8>) return std::nullopt;
  OpCase made = c;
  made.rules = &kRules<Apart>;
  made.op = std::make_shared<const Apart>(Apart{*static_cast<const FusedFloat8*>(c.op.get())});
  return made;
}

}  // namespace tokamak::testing
