#include "tokamak/ops/norm/norm.h"

#include <algorithm>
#include <numeric>

#include "tokamak/ops/elementwise/add.h"
#include "tokamak/ops/row_sums.h"

namespace tokamak {
namespace {

constexpr int parameters_of(NormKind kind) {
  return kind == NormKind::kRms ? 1 : 2;
}

// Returns the operations per element of x.
constexpr double norm_work(NormKind kind) {
  return kind == NormKind::kRms ? 4.0 : 7.0;
}

constexpr double grad_work(NormKind kind) {
  return kind == NormKind::kRms ? 12.0 : 19.0;
}

void require_kind(std::string_view op, NormKind kind, bool zero_centered) {
  TOK_REQUIRE(!zero_centered || kind == NormKind::kRms, "{}: weights are not zero-centered", op);
}

std::string described(float eps, bool zero_centered) {
  return fmt::format("eps={}{}", eps, zero_centered ? ", zero-centered" : "");
}

void require_parameters(std::string_view op, const TensorType& x, std::span<const TensorType> p) {
  constexpr std::string_view kNames[] = {"w", "b"};
  for (size_t i = 0; i < p.size(); ++i) {
    TOK_REQUIRE(!x.dims.empty() && is_float(x.dtype) && p[i].dtype == x.dtype &&
                    p[i].dims == Dims{x.dims.back()},
                "{}: x is {}, {} is {}; wanted one element for each of x's last dim", op,
                to_string(x), kNames[i], to_string(p[i]));
  }
}

// Marks `by_row` values that are cut by rows, then `whole` values that are not.
std::vector<bool> rows_then_whole(int by_row, int whole) {
  std::vector<bool> cut(by_row, true);
  cut.resize(by_row + whole, false);
  return cut;
}

}  // namespace

template <NormKind kKind>
Types Norm<kKind>::infer(std::span<const TensorType> in) const {
  require_kind(kName, kKind, zero_centered);
  require_inputs(kName, in, 1 + parameters_of(kKind), 1 + parameters_of(kKind));
  require_parameters(kName, in[0], in.subspan(1));
  return {in[0]};
}

template <NormKind kKind>
std::vector<Strategy> Norm<kKind>::place(std::span<const TensorType> in) const {
  return place_rows(in[0], rows_then_whole(1, parameters_of(kKind)), {true});
}

template <NormKind kKind>
std::vector<Value> Norm<kKind>::gradient(Graph& g, int32_t self, std::span<const Value> dy) const {
  const Node& n = g.node(self);
  return g.add(NormGrad<kKind>{.eps = eps, .zero_centered = zero_centered},
               {n.in[0], n.in[1], dy[0]});
}

template <NormKind kKind>
Cost Norm<kKind>::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return memory_cost(in, out, norm_work(kKind));
}

template <NormKind kKind>
std::optional<AnyOp> Norm<kKind>::after(const AnyOp& producer) const {
  if (producer.as<Add>() == nullptr) return std::nullopt;
  return any_op(AddNorm<kKind>{.eps = eps, .zero_centered = zero_centered});
}

template <NormKind kKind>
std::string Norm<kKind>::describe() const {
  return described(eps, zero_centered);
}

template <NormKind kKind>
Types AddNorm<kKind>::infer(std::span<const TensorType> in) const {
  require_kind(kName, kKind, zero_centered);
  require_inputs(kName, in, 2 + parameters_of(kKind), 2 + parameters_of(kKind));
  require_same_type(kName, "x", in[0], "branch", in[1]);
  require_parameters(kName, in[0], in.subspan(2));
  return {in[0], in[0]};
}

template <NormKind kKind>
std::vector<Strategy> AddNorm<kKind>::place(std::span<const TensorType> in) const {
  return place_rows(in[0], rows_then_whole(2, parameters_of(kKind)), {true, true});
}

template <NormKind kKind>
std::vector<Value> AddNorm<kKind>::gradient(Graph& g, int32_t self,
                                            std::span<const Value> dy) const {
  const Node& n = g.node(self);
  std::vector<Value> grads(2 + parameters_of(kKind));
  Value dx = dy[0];
  if (dy[1].valid()) {
    const Value sum = g.apply(Add{}, {n.in[0], n.in[1]});
    const std::vector<Value> grad =
        g.add(NormGrad<kKind>{.eps = eps, .zero_centered = zero_centered}, {sum, n.in[2], dy[1]});
    dx = dx.valid() ? g.apply(Add{}, {dx, grad[0]}) : grad[0];
    std::copy(grad.begin() + 1, grad.end(), grads.begin() + 2);
  }
  grads[0] = grads[1] = dx;
  return grads;
}

template <NormKind kKind>
Cost AddNorm<kKind>::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return memory_cost(in, out, norm_work(kKind) + 1.0);
}

template <NormKind kKind>
std::string AddNorm<kKind>::describe() const {
  return described(eps, zero_centered);
}

template <NormKind kKind>
Types NormGrad<kKind>::infer(std::span<const TensorType> in) const {
  require_kind(kName, kKind, zero_centered);
  TOK_REQUIRE(!emits_y || kKind == NormKind::kRms, "{}: it does not make y", kName);
  require_inputs(kName, in, 3, 3);
  require_parameters(kName, in[0], in.subspan(1, 1));
  require_same_type(kName, "x", in[0], "dy", in[2]);
  Types out{in[0]};
  out.resize(1 + parameters_of(kKind), {.dtype = gradient_dtype(in[0].dtype), .dims = in[1].dims});
  if (emits_y) out.push_back(in[0]);
  return out;
}

template <NormKind kKind>
std::vector<Strategy> NormGrad<kKind>::place(std::span<const TensorType> in) const {
  std::vector<bool> out_by_row = rows_then_whole(1, parameters_of(kKind));
  if (emits_y) out_by_row.push_back(true);
  return place_rows(in[0], {true, false, true}, out_by_row);
}

template <NormKind kKind>
Cost NormGrad<kKind>::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return memory_cost(in, out, grad_work(kKind) + (emits_y ? 2.0 : 0.0));
}

template <NormKind kKind>
std::vector<int> NormGrad<kKind>::accumulates() const {
  std::vector<int> outs(1 + parameters_of(kKind));
  std::iota(outs.begin(), outs.end(), 0);
  return outs;
}

template <NormKind kKind>
std::span<const Variant> NormGrad<kKind>::variants() {
  return with_row_sums<parameters_of(kKind)>();
}

template <NormKind kKind>
std::optional<AnyOp> NormGrad<kKind>::emitting(const AnyOp& forward) const {
  const auto* norm = forward.as<Norm<kKind>>();
  if (kKind != NormKind::kRms || emits_y || norm == nullptr || norm->eps != eps ||
      norm->zero_centered != zero_centered)
    return std::nullopt;
  return any_op(NormGrad{.eps = eps, .emits_y = true, .zero_centered = zero_centered});
}

template <NormKind kKind>
std::string NormGrad<kKind>::describe() const {
  return described(eps, zero_centered) + (emits_y ? ", with y" : "");
}

template struct Norm<NormKind::kRms>;
template struct AddNorm<NormKind::kRms>;
template struct NormGrad<NormKind::kRms>;
template struct Norm<NormKind::kLayer>;
template struct AddNorm<NormKind::kLayer>;
template struct NormGrad<NormKind::kLayer>;

}  // namespace tokamak
