#include "tokamak/ops/optimizer/grad_norm.h"

#include <algorithm>
#include <array>

namespace tokamak {

Types SumSquares::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 1, 1);
  TOK_REQUIRE(is_float(in[0].dtype), "sum_squares: wanted floats, got {}", to_string(in[0]));
  for (const WeightRange& r : ranges) {
    TOK_REQUIRE(
        in[0].dims.size() == 1 && 0 <= r.begin && r.begin <= r.end && r.end <= in[0].dims[0],
        "sum_squares: no elements {} to {} in {}", r.begin, r.end, to_string(in[0].dims));
  }
  return {{.dtype = DType::kF64, .dims = {1}}};
}

std::vector<SumSquares::WeightRange> SumSquares::blocks(int64_t numel) const {
  std::vector<WeightRange> all = ranges;
  if (all.empty()) all = {{.end = numel}};
  std::vector<WeightRange> blocks;
  for (const WeightRange& r : all) {
    for (int64_t begin = r.begin; begin < r.end; begin += kBlock)
      blocks.push_back(
          {.begin = begin, .end = std::min(begin + kBlock, r.end), .weight = r.weight});
  }
  return blocks;
}

int64_t SumSquares::num_blocks(int64_t numel) const {
  const auto blocks_of = [](int64_t n) { return (n + kBlock - 1) / kBlock; };
  if (ranges.empty()) return blocks_of(numel);
  int64_t count = 0;
  for (const WeightRange& r : ranges) count += blocks_of(r.end - r.begin);
  return count;
}

std::string SumSquares::describe() const {
  return ranges.empty() ? "" : fmt::format("{} ranges", ranges.size());
}

std::vector<Strategy> SumSquares::place(std::span<const TensorType> in) const {
  std::vector<Strategy> all{replicate(1, 1)};
  if (!ranges.empty()) return all;
  for (int d = 0; d < static_cast<int>(in[0].dims.size()); ++d)
    all.push_back({.in = {cut(d)}, .out = {kPartialSum}});
  return all;
}

Cost SumSquares::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  Cost cost = memory_cost(in, out, 0.0);
  cost.flops = 2.0 * static_cast<double>(in[0].numel());
  return cost;
}

std::span<const Variant> SumSquares::variants() {
  // The workspace holds one double per block.
  constexpr auto kPartialSums = [](const void* op, const KernelTypes& types,
                                   const Target&) -> int64_t {
    const auto& self = *static_cast<const SumSquares*>(op);
    return self.num_blocks(types.in[0].numel()) * 8;
  };
  static constexpr std::array kVariants{
      Variant{
          .name = kCpuReference.name, .backend = kCpuReference.backend, .workspace = kPartialSums},
      Variant{.name = kGpuKernel.name, .backend = kGpuKernel.backend, .workspace = kPartialSums}};
  return kVariants;
}

Types ClipFactor::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 1, 3);
  for (const TensorType& type : in) {
    TOK_REQUIRE(type.dtype == DType::kF64 && type.dims == Dims{1},
                "clip_factor: wanted float64[1], got {}", to_string(type));
  }
  return {in[0], {.dtype = DType::kF32, .dims = {1}}};
}

std::vector<Strategy> ClipFactor::place(std::span<const TensorType> in) const {
  return {replicate(in.size(), 2)};
}

Cost ClipFactor::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return memory_cost(in, out, 4.0);
}

}  // namespace tokamak
