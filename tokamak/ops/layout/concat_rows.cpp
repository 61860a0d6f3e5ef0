#include "tokamak/ops/layout/concat_rows.h"

#include <algorithm>

#include "tokamak/ops/layout/slice_rows.h"

namespace tokamak {

Types ConcatRows::infer(std::span<const TensorType> in) const {
  TOK_REQUIRE(!in.empty() && !in[0].dims.empty(), "concat_rows: wanted tensors with rows");
  TensorType out = in[0];
  for (const TensorType& part : in.subspan(1)) {
    TOK_REQUIRE(part.dtype == out.dtype && part.dims.size() == out.dims.size() &&
                    std::equal(part.dims.begin() + 1, part.dims.end(), out.dims.begin() + 1),
                "concat_rows: parts differ: {} and {}", to_string(in[0]), to_string(part));
    out.dims[0] += part.dims[0];
  }
  return {out};
}

std::vector<Strategy> ConcatRows::place(std::span<const TensorType> in) const {
  std::vector<Strategy> all{replicate(in.size(), 1)};
  const auto alike = [&](Shard s) {
    all.push_back({.in = std::vector<Shard>(in.size(), s), .out = {s}});
  };
  for (int d = 1; d < static_cast<int>(in[0].dims.size()); ++d) alike(cut(d));
  alike(kPartialSum);
  return all;
}

std::vector<Value> ConcatRows::gradient(Graph& g, int32_t self, std::span<const Value> dy) const {
  const Node& n = g.node(self);
  std::vector<Value> dx;
  int64_t begin = 0;
  for (const Value part : n.in) {
    const int64_t end = begin + g.type(part).dims[0];
    dx.push_back(g.apply(SliceRows{.begin = begin, .end = end}, {dy[0]}));
    begin = end;
  }
  return dx;
}

Cost ConcatRows::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return memory_cost(in, out, 0.0);
}

}  // namespace tokamak
