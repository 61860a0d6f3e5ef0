#include "tokamak/ops/optimizer/adamw.h"

namespace tokamak {

Types AdamW::infer(std::span<const TensorType> in) const {
  const int operands = has_copy ? 7 : 6;
  require_inputs(kName, in, operands, operands);
  require_same_dims(kName, "w", in[0], "m", in[1]);
  require_same_dims(kName, "w", in[0], "v", in[2]);
  require_same_dims(kName, "w", in[0], "g", in[3]);
  const DType moments = in[1].dtype;
  TOK_REQUIRE(is_float(in[0].dtype) && moments == in[2].dtype &&
                  (is_stochastic || moments == in[0].dtype || moments == DType::kF32),
              "adamw: w is {}, m is {}, v is {}", name_of(in[0].dtype), name_of(in[1].dtype),
              name_of(in[2].dtype));
  TOK_REQUIRE(!is_stochastic || moments == DType::kBF16,
              "adamw: stochastic rounding is to bfloat16, moments are {}", name_of(moments));
  TOK_REQUIRE(is_float(in[3].dtype), "adamw: g is {}", name_of(in[3].dtype));
  TOK_REQUIRE(in[4].dtype == DType::kF64 && in[4].dims == Dims{4},
              "adamw: scalars wants float64[4], got {}", to_string(in[4]));
  TOK_REQUIRE(in[5].dtype == DType::kF32 && in[5].dims == Dims{1},
              "adamw: wanted a factor of float32[1], got {}", to_string(in[5]));
  for (const DecayRange& r : ranges) {
    TOK_REQUIRE(
        in[0].dims.size() == 1 && 0 <= r.begin && r.begin <= r.end && r.end <= in[0].dims[0],
        "adamw: no elements {} to {} in {}", r.begin, r.end, to_string(in[0].dims));
  }
  if (!has_copy) return {in[0], in[1], in[2]};
  require_same_dims(kName, "w", in[0], "its copy", in[6]);
  TOK_REQUIRE(is_float(in[6].dtype), "adamw: the copy is {}", name_of(in[6].dtype));
  return {in[0], in[1], in[2], in[6]};
}

std::vector<Strategy> AdamW::place(std::span<const TensorType> in) const {
  std::vector<Strategy> all{has_copy ? replicate(7, 4) : replicate(6, 3)};
  if (!ranges.empty() || is_stochastic) return all;
  for (int d = 0; d < static_cast<int>(in[0].dims.size()); ++d) {
    const Shard s = cut(d);
    all.push_back({.in = {s, s, s, s, kReplicated, kReplicated}, .out = {s, s, s}});
    if (!has_copy) continue;
    all.back().in.push_back(s);
    all.back().out.push_back(s);
  }
  return all;
}

Cost AdamW::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  // The old copy is not read. Ten rounds of Philox make words for four elements.
  return memory_cost(in.first(6), out, is_stochastic ? 40.0 : 14.0);
}

std::vector<Alias> AdamW::aliases() const {
  std::vector<Alias> all{{.out = 0, .in = 0, .must = true},
                         {.out = 1, .in = 1, .must = true},
                         {.out = 2, .in = 2, .must = true}};
  if (has_copy) all.push_back({.out = 3, .in = 6, .must = true});
  return all;
}

std::string AdamW::describe() const {
  std::string text = ranges.empty() ? "" : fmt::format("{} ranges", ranges.size());
  if (is_stochastic) text += text.empty() ? "stochastic" : ", stochastic";
  return text;
}

}  // namespace tokamak
