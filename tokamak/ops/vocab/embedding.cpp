#include "tokamak/ops/vocab/embedding.h"

#include <array>

#include "tokamak/ops/vocab/embedding_layout.h"

namespace tokamak {
namespace {

void require_tokens(std::string_view op, const TensorType& tokens) {
  TOK_REQUIRE(tokens.dtype == DType::kI32, "{}: tokens are {}, wanted int32", op,
              to_string(tokens));
}

int64_t lists_and_sums(const void* op, const KernelTypes& types, const Target&) {
  const TensorType& dy = types.in[1];
  const int64_t sum_bytes = size_of(gradient_dtype(dy.dtype));
  return EmbeddingGradLayout(types.in[0].numel(), static_cast<const EmbeddingGrad*>(op)->vocab,
                             dy.dims.back(), sum_bytes)
      .bytes;
}

}  // namespace

Types Embedding::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 2, 2);
  require_tokens(kName, in[0]);
  TOK_REQUIRE(in[1].dims.size() == 2 && is_float(in[1].dtype),
              "embedding: table wants float [vocab, embed], got {}", to_string(in[1]));
  Dims dims = in[0].dims;
  dims.push_back(in[1].dims[1]);
  return {{.dtype = in[1].dtype, .dims = std::move(dims)}};
}

std::vector<Strategy> Embedding::place(std::span<const TensorType> in) const {
  const int rank = static_cast<int>(in[0].dims.size());
  std::vector<Strategy> all{replicate(2, 1)};
  for (int d = 0; d < rank; ++d) all.push_back({.in = {cut(d), kReplicated}, .out = {cut(d)}});
  all.push_back({.in = {kReplicated, cut(1)}, .out = {cut(rank)}});
  all.push_back({.in = {kReplicated, cut(0)}, .out = {kPartialSum}});
  return all;
}

std::vector<Value> Embedding::gradient(Graph& g, int32_t self, std::span<const Value> dy) const {
  const Node& n = g.node(self);
  const int64_t vocab = g.type(n.in[1]).dims[0];
  return {Value{},
          g.apply(EmbeddingGrad{.vocab = vocab, .first_row = first_row}, {n.in[0], dy[0]})};
}

Cost Embedding::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  Cost cost = memory_cost({}, out, 0.0);
  cost.bytes_read = static_cast<double>(in[0].bytes() + out[0].bytes());
  return cost;
}

std::optional<AnyOp> Embedding::localize(const LocalContext& context) const {
  if (context.strategy.in[1] != cut(0)) return std::nullopt;
  Embedding local = *this;
  local.first_row += context.in[1].begin;
  return any_op(local);
}

std::string Embedding::describe() const {
  return first_row > 0 ? fmt::format("from row {}", first_row) : "";
}

Types EmbeddingGrad::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 2, 2);
  require_tokens(kName, in[0]);
  const bool fits = in[1].dims.size() == in[0].dims.size() + 1 && is_float(in[1].dtype) &&
                    std::equal(in[0].dims.begin(), in[0].dims.end(), in[1].dims.begin());
  TOK_REQUIRE(fits, "embedding_grad: dy is {}, tokens are {}", to_string(in[1]), to_string(in[0]));
  TOK_REQUIRE(vocab > 0, "embedding_grad: vocab is {}, wanted a positive number", vocab);
  return {{.dtype = gradient_dtype(in[1].dtype), .dims = {vocab, in[1].dims.back()}}};
}

std::vector<Strategy> EmbeddingGrad::place(std::span<const TensorType> in) const {
  std::vector<Strategy> all = place_rows(in[1], {true, true}, {false});
  all.push_back({.in = {kReplicated, cut(static_cast<int>(in[0].dims.size()))}, .out = {cut(1)}});
  all.push_back({.in = {kReplicated, kReplicated}, .out = {cut(0)}});
  return all;
}

Cost EmbeddingGrad::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  Cost cost = memory_cost(in, out, 0.0);
  cost.flops = static_cast<double>(in[1].numel());
  return cost;
}

std::optional<AnyOp> EmbeddingGrad::localize(const LocalContext& context) const {
  if (context.strategy.out[0] != cut(0)) return std::nullopt;
  EmbeddingGrad local = *this;
  local.first_row += context.out[0].begin;
  local.vocab = context.out[0].size();
  return any_op(local);
}

std::string EmbeddingGrad::describe() const {
  return fmt::format("vocab={}{}", vocab,
                     first_row > 0 ? fmt::format(" from row {}", first_row) : "");
}

std::span<const Variant> EmbeddingGrad::variants() {
  static constexpr std::array kVariants{
      kCpuReference,
      Variant{.name = kGpuKernel.name, .backend = kGpuKernel.backend, .workspace = lists_and_sums}};
  return kVariants;
}

}  // namespace tokamak
