#include "tokamak/ops/vocab/cross_entropy.h"

#include <array>

#include <fmt/format.h>

namespace tokamak {
namespace {

constexpr Variant kFast{.name = "fast",
                        .backend = "cpu",
                        .accepts = [](const void*, const KernelTypes& types) -> std::string {
                          return types.in[0].dtype == DType::kF64 ? "for float32 and bfloat16" : "";
                        }};

std::span<const Variant> stats_variants() {
  static constexpr std::array kVariants{kFast, kCpuReference, kGpuKernel};
  return kVariants;
}

void require_logits(std::string_view op, const TensorType& logits) {
  TOK_REQUIRE(logits.dims.size() == 2 && is_float(logits.dtype),
              "{}: logits wants [tokens, vocabulary] floats, got {}", op, to_string(logits));
}

void require_valid(std::string_view op, int64_t valid_columns, const TensorType& logits) {
  TOK_REQUIRE(valid_columns >= 0 && valid_columns <= logits.dims[1],
              "{}: {} valid columns of logits {}", op, valid_columns, to_string(logits));
}

std::string describe_valid(int64_t valid_columns) {
  return valid_columns == 0 ? "" : fmt::format("{} columns", valid_columns);
}

void require_labels(std::string_view op, const TensorType& labels, int64_t tokens) {
  TOK_REQUIRE(labels.dtype == DType::kI32 && labels.dims == Dims{tokens},
              "{}: labels wants int32[{}], got {}", op, tokens, to_string(labels));
}

void require_stats(std::string_view op, const TensorType& stats) {
  TOK_REQUIRE(stats.dims.size() == 2 && stats.dims[1] == 3 && is_float(stats.dtype),
              "{}: stats wants [tokens, 3] floats, got {}", op, to_string(stats));
}

void require_scale(std::string_view op, const TensorType& scale) {
  TOK_REQUIRE(scale.dtype == DType::kF32 && scale.dims == Dims{1},
              "{}: scale wants float32[1], got {}", op, to_string(scale));
}

}  // namespace

Types SoftmaxStats::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 2, 2);
  require_logits(kName, in[0]);
  require_valid(kName, valid_columns, in[0]);
  require_labels(kName, in[1], in[0].dims[0]);
  return {{.dtype = gradient_dtype(in[0].dtype), .dims = {in[0].dims[0], 3}}};
}

std::vector<Strategy> SoftmaxStats::place(std::span<const TensorType>) const {
  return {replicate(2, 1), {.in = {cut(0), cut(0)}, .out = {cut(0)}}};
}

Cost SoftmaxStats::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  Cost cost = memory_cost(in, out, 0.0);
  cost.flops = 4.0 * static_cast<double>(in[0].numel());
  cost.logits = in[0].numel();
  return cost;
}

std::string SoftmaxStats::describe() const {
  return describe_valid(valid_columns);
}

std::span<const Variant> SoftmaxStats::variants() {
  return stats_variants();
}

Types CombineStats::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 1, 1);
  TOK_REQUIRE(
      in[0].dims.size() == 3 && in[0].dims[0] > 0 && in[0].dims[2] == 3 && is_float(in[0].dtype),
      "combine_stats: wanted floats [parts, tokens, 3], got {}", to_string(in[0]));
  return {{.dtype = in[0].dtype, .dims = {in[0].dims[1], 3}}};
}

std::vector<Strategy> CombineStats::place(std::span<const TensorType>) const {
  return {replicate(1, 1), {.in = {cut(1)}, .out = {cut(0)}}};
}

Cost CombineStats::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  Cost cost = memory_cost(in, out, 0.0);
  cost.flops = 2.0 * static_cast<double>(in[0].numel());
  return cost;
}

Types Nll::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 3, 3);
  require_stats(kName, in[0]);
  require_labels(kName, in[1], in[0].dims[0]);
  require_scale(kName, in[2]);
  return {{.dtype = DType::kF64, .dims = {1}}};
}

std::vector<Strategy> Nll::place(std::span<const TensorType>) const {
  return {replicate(3, 1), {.in = {cut(0), cut(0), kReplicated}, .out = {kPartialSum}}};
}

Cost Nll::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  Cost cost = memory_cost(in, out, 0.0);
  cost.flops = 4.0 * static_cast<double>(in[0].dims[0]);
  return cost;
}

Types CrossEntropyGrad::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 4, 4);
  require_logits(kName, in[0]);
  require_valid(kName, valid_columns, in[0]);
  require_labels(kName, in[1], in[0].dims[0]);
  require_stats(kName, in[2]);
  TOK_REQUIRE(in[2].dims[0] == in[0].dims[0], "cross_entropy_grad: {} stats for {} tokens",
              in[2].dims[0], in[0].dims[0]);
  require_scale(kName, in[3]);
  TOK_REQUIRE(cap >= 0.0, "cross_entropy_grad: wanted a cap of 0 (none) or more, got {}", cap);
  return {in[0]};
}

std::vector<Strategy> CrossEntropyGrad::place(std::span<const TensorType>) const {
  return {replicate(4, 1), {.in = {cut(0), cut(0), cut(0), kReplicated}, .out = {cut(0)}}};
}

Cost CrossEntropyGrad::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  Cost cost = memory_cost(in, out, 4.0);
  cost.logits = 0;
  return cost;
}

std::string CrossEntropyGrad::describe() const {
  std::string valid = describe_valid(valid_columns);
  if (cap == 0.0) return valid;
  return fmt::format("{}{}cap={}", valid, valid.empty() ? "" : " ", cap);
}

std::span<const Variant> CrossEntropyGrad::variants() {
  return stats_variants();
}

}  // namespace tokamak
