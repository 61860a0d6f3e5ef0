#include "tokamak/ops/adamw.h"

namespace tokamak {

Types AdamW::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 6, 6);
  require_same_dims(kName, "w", in[0], "m", in[1]);
  require_same_dims(kName, "w", in[0], "v", in[2]);
  require_same_dims(kName, "w", in[0], "g", in[3]);
  TOK_REQUIRE(is_float(in[0].dtype) && in[1].dtype == in[0].dtype && in[2].dtype == in[0].dtype,
              "adamw: w is {}, m is {}, v is {}", name_of(in[0].dtype), name_of(in[1].dtype),
              name_of(in[2].dtype));
  TOK_REQUIRE(is_float(in[3].dtype), "adamw: g is {}", name_of(in[3].dtype));
  TOK_REQUIRE(in[4].dtype == DType::kF64 && in[4].dims == Dims{3},
              "adamw: scalars wants float64[3], got {}", to_string(in[4]));
  TOK_REQUIRE(in[5].dtype == DType::kF32 && in[5].dims == Dims{1},
              "adamw: factor wants float32[1], got {}", to_string(in[5]));
  for (const DecayRange& r : ranges) {
    TOK_REQUIRE(
        in[0].dims.size() == 1 && 0 <= r.begin && r.begin <= r.end && r.end <= in[0].dims[0],
        "adamw: no elements {} to {} in {}", r.begin, r.end, to_string(in[0].dims));
  }
  return {in[0], in[1], in[2]};
}

std::vector<Strategy> AdamW::place(std::span<const TensorType> in) const {
  std::vector<Strategy> all{replicate(6, 3)};
  if (!ranges.empty()) return all;
  for (int d = 0; d < static_cast<int>(in[0].dims.size()); ++d) {
    const Shard s = cut(d);
    all.push_back({.in = {s, s, s, s, kReplicated, kReplicated}, .out = {s, s, s}});
  }
  return all;
}

std::vector<Value> AdamW::gradient(Graph&, const Node& n, std::span<const Value>) const {
  return no_gradient(n);
}

Cost AdamW::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return memory_cost(in, out, 14.0);
}

std::vector<Alias> AdamW::aliases() const {
  return {{.out = 0, .in = 0, .must = true},
          {.out = 1, .in = 1, .must = true},
          {.out = 2, .in = 2, .must = true}};
}

std::string AdamW::describe() const {
  return ranges.empty() ? "" : fmt::format("{} ranges", ranges.size());
}

}  // namespace tokamak
