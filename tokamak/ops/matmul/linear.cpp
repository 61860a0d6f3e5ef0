#include "tokamak/ops/matmul/linear.h"

#include <array>

#include <fmt/format.h>

#include "tokamak/ops/column_sums.h"
#include "tokamak/ops/matmul/few_rows.h"

namespace tokamak {
namespace {

constexpr Variant kOneDnn{.name = "onednn",
                          .backend = "cpu",
                          .accepts = [](const void*, const KernelTypes& types) -> std::string {
                            if (types.in[0].dtype == DType::kF64) return "oneDNN has no float64";
#ifndef TOK_WITH_ONEDNN
                            return "built without oneDNN";
#else
                            return {};
#endif
                          }};

constexpr Variant kCublas{
    .name = "cublaslt",
    .backend = "gpu",
    .library = "cublaslt",
    .accepts = [](const void*, const KernelTypes& types) -> std::string {
      if (types.in[0].dtype == DType::kF64) return "for float32 and bfloat16";
      const auto is_odd = [](const TensorType& t) {
        return t.dims.back() * size_of(t.dtype) % 16 != 0;
      };
      if (is_odd(types.in[0]) || is_odd(types.in[1]) || is_odd(types.out[0]))
        return "rows are not whole 16-byte words";
      return {};
    },
    .workspace = [](const void*, const KernelTypes&, const Target&) { return kCublasWorkspace; }};

constexpr Variant kFewRows{.name = kFewRowsVariant,
                           .backend = "gpu",
                           .accepts = [](const void*, const KernelTypes& types) -> std::string {
                             if (types.in[0].dtype == DType::kF64)
                               return "for float32 and bfloat16";
                             const int64_t rows = rows_of(types.in[0]);
                             if (rows < 1 || rows > kMostFewRows)
                               return fmt::format("{} tokens: wanted 1 to {}", rows, kMostFewRows);
                             if (types.in[1].dims[1] * size_of(types.in[1].dtype) % 16 != 0)
                               return "rows of w are not whole 16-byte words";
                             if (types.in[1].dims[1] > INT32_MAX) return "rows of w are too long";
                             if (types.in[1].dims[0] < kFewestOutputs)
                               return fmt::format("{} outputs: wanted {} or more",
                                                  types.in[1].dims[0], kFewestOutputs);
                             return types.in[1].numel() > 0 ? "" : "nothing to do";
                           }};

std::span<const Variant> gemm_variants() {
  static constexpr std::array kVariants{kOneDnn, kCpuReference, kCublas, kGpuKernel};
  return kVariants;
}

Cost gemm_cost(Cost::Product product, int64_t m, int64_t n, int64_t k,
               std::span<const TensorType> in, std::span<const TensorType> out) {
  Cost cost = memory_cost(in, out, 0.0);
  cost.kind = Cost::Kind::kGemm;
  cost.product = product;
  cost.dtype = in[0].dtype;
  cost.row_widths = n | in[0].dims.back() | in[1].dims.back();
  cost.m = m;
  cost.n = n;
  cost.k = k;
  cost.flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  return cost;
}

Dims with_last(Dims dims, int64_t last) {
  dims.back() = last;
  return dims;
}

void require_matrix(std::string_view op, std::string_view name, const TensorType& w) {
  TOK_REQUIRE(w.dims.size() == 2, "{}: {} wants 2 dims, got {}", op, name, to_string(w.dims));
}

int last_dim(const TensorType& type) {
  return static_cast<int>(type.dims.size()) - 1;
}

// Adds cuts along each leading (token) dim: x and y are cut alike, weights are replicated, and if
// `sums_tokens` the output becomes a partial sum.
void add_token_cuts(std::vector<Strategy>& strategies, int leading,
                    const std::vector<bool>& token_in, bool sums_tokens) {
  for (int d = 0; d < leading; ++d) {
    Strategy s;
    for (const bool is_token : token_in) s.in.push_back(is_token ? cut(d) : kReplicated);
    s.out = {sums_tokens ? kPartialSum : cut(d)};
    strategies.push_back(std::move(s));
  }
}

}  // namespace

Types Linear::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 2, 3);
  require_matrix(kName, "w", in[1]);
  TOK_REQUIRE(!in[0].dims.empty() && in[0].dims.back() == in[1].dims[1],
              "linear: inner dims differ: x is {}, w is {}", to_string(in[0].dims),
              to_string(in[1].dims));
  TOK_REQUIRE(in[0].dtype == in[1].dtype, "linear: x is {}, w is {}", to_string(in[0]),
              to_string(in[1]));
  TOK_REQUIRE(in.size() < 3 || in[2].dims == Dims{in[1].dims[0]}, "linear: bias wants [{}], got {}",
              in[1].dims[0], to_string(in[2].dims));
  return {{.dtype = in[0].dtype, .dims = with_last(in[0].dims, in[1].dims[0])}};
}

std::vector<Strategy> Linear::place(std::span<const TensorType> in) const {
  const bool bias = in.size() == 3;
  std::vector<Strategy> all{replicate(in.size(), 1)};
  std::vector<bool> tokens{true, false};
  if (bias) tokens.push_back(false);
  add_token_cuts(all, last_dim(in[0]), tokens, false);
  Strategy column{.in = {kReplicated, cut(0)}, .out = {cut(last_dim(in[0]))}};
  if (bias) column.in.push_back(cut(0));
  all.push_back(column);
  Strategy row{.in = {cut(last_dim(in[0])), cut(1)}, .out = {kPartialSum}};
  if (bias) row.in.push_back(kReplicated);
  all.push_back(row);
  return all;
}

std::optional<AnyOp> Linear::localize(const LocalContext& context) const {
  if (context.strategy.out[0] != kPartialSum || context.group.rank == 0) return std::nullopt;
  Linear local = *this;
  local.adds_bias = false;
  return any_op(local);
}

std::string Linear::describe() const {
  return adds_bias ? "" : "without bias";
}

std::vector<Value> Linear::gradient(Graph& g, int32_t self, std::span<const Value> dy) const {
  const Node& n = g.node(self);
  std::vector<Value> dx{
      g.apply(LinearGradInput{.low_precision = low_precision, .module = module}, {dy[0], n.in[1]}),
      g.apply(LinearGradWeight{.low_precision = low_precision, .module = module},
              {n.in[0], dy[0]})};
  if (n.in.size() == 3) dx.push_back(g.apply(LinearGradBias{}, {dy[0]}));
  return dx;
}

Cost Linear::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return gemm_cost(Cost::Product::kOutput, rows_of(in[0]), in[1].dims[0], in[1].dims[1], in, out);
}

std::span<const Variant> Linear::variants() {
  static constexpr std::array kVariants{kOneDnn, kCpuReference, kFewRows, kCublas, kGpuKernel};
  return kVariants;
}

Types LinearGradInput::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 2, 2);
  require_matrix(kName, "w", in[1]);
  TOK_REQUIRE(!in[0].dims.empty() && in[0].dims.back() == in[1].dims[0],
              "linear_grad_input: inner dims differ: dy is {}, w is {}", to_string(in[0].dims),
              to_string(in[1].dims));
  return {{.dtype = in[0].dtype, .dims = with_last(in[0].dims, in[1].dims[1])}};
}

std::vector<Strategy> LinearGradInput::place(std::span<const TensorType> in) const {
  std::vector<Strategy> all{replicate(2, 1)};
  add_token_cuts(all, last_dim(in[0]), {true, false}, false);
  all.push_back({.in = {cut(last_dim(in[0])), cut(0)}, .out = {kPartialSum}});
  all.push_back({.in = {kReplicated, cut(1)}, .out = {cut(last_dim(in[0]))}});
  return all;
}

Cost LinearGradInput::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return gemm_cost(Cost::Product::kInputGradient, rows_of(in[0]), in[1].dims[1], in[1].dims[0], in,
                   out);
}

std::span<const Variant> LinearGradInput::variants() {
  return gemm_variants();
}

Types LinearGradWeight::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 2, 2);
  TOK_REQUIRE(!in[0].dims.empty() && !in[1].dims.empty() && rows_of(in[0]) == rows_of(in[1]),
              "linear_grad_weight: tokens differ: x is {}, dy is {}", to_string(in[0].dims),
              to_string(in[1].dims));
  TOK_REQUIRE(begin >= 0 && rows >= 0 && begin + rows <= in[1].dims.back(),
              "linear_grad_weight: {} exceeds {} rows", describe(), in[1].dims.back());
  return {{.dtype = gradient_dtype(in[0].dtype), .dims = {num_rows(in[1]), in[0].dims.back()}}};
}

std::string LinearGradWeight::describe() const {
  return rows > 0 ? fmt::format("rows {}:{}", begin, begin + rows) : "";
}

std::vector<Strategy> LinearGradWeight::place(std::span<const TensorType> in) const {
  std::vector<Strategy> all{replicate(2, 1)};
  add_token_cuts(all, last_dim(in[0]), {true, true}, true);
  if (rows == 0) all.push_back({.in = {kReplicated, cut(last_dim(in[1]))}, .out = {cut(0)}});
  all.push_back({.in = {cut(last_dim(in[0])), kReplicated}, .out = {cut(1)}});
  return all;
}

Cost LinearGradWeight::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return gemm_cost(Cost::Product::kWeightGradient, num_rows(in[1]), in[0].dims.back(),
                   rows_of(in[0]), in, out);
}

std::span<const Variant> LinearGradWeight::variants() {
  constexpr auto kAccepts = [](const void* op, const KernelTypes& types) -> std::string {
    const int64_t first_row = static_cast<const LinearGradWeight*>(op)->begin;
    if (first_row * size_of(types.in[1].dtype) % 16 != 0)
      return "the first row of dw begins within a 16-byte word of dy";
    return kCublas.accepts(op, types);
  };
  static constexpr Variant kCublasOfRows{.name = kCublas.name,
                                         .backend = kCublas.backend,
                                         .library = kCublas.library,
                                         .accepts = kAccepts,
                                         .workspace = kCublas.workspace};
  static constexpr std::array kVariants{kOneDnn, kCpuReference, kCublasOfRows, kGpuKernel};
  return kVariants;
}

Types LinearGradBias::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 1, 1);
  TOK_REQUIRE(!in[0].dims.empty(), "linear_grad_bias: dy is a scalar");
  return {{.dtype = gradient_dtype(in[0].dtype), .dims = {in[0].dims.back()}}};
}

std::vector<Strategy> LinearGradBias::place(std::span<const TensorType> in) const {
  std::vector<Strategy> all{replicate(1, 1)};
  add_token_cuts(all, last_dim(in[0]), {true}, true);
  all.push_back({.in = {cut(last_dim(in[0]))}, .out = {cut(0)}});
  return all;
}

Cost LinearGradBias::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  Cost cost = memory_cost(in, out, 0.0);
  cost.flops = static_cast<double>(in[0].numel());
  return cost;
}

std::span<const Variant> LinearGradBias::variants() {
  static constexpr std::array kVariants{
      kCpuReference, Variant{.name = kGpuKernel.name,
                             .backend = kGpuKernel.backend,
                             .workspace = [](const void*, const KernelTypes& types, const Target&) {
                               return column_sum_bytes(types.in[0]);
                             }}};
  return kVariants;
}

}  // namespace tokamak
