#include "tokamak/ops/rms_norm.h"

#include "tokamak/ops/row_sums.h"

namespace tokamak {
namespace {

void require_weight(std::string_view op, const TensorType& x, const TensorType& w) {
  TOK_REQUIRE(
      !x.dims.empty() && is_float(x.dtype) && w.dtype == x.dtype && w.dims == Dims{x.dims.back()},
      "{}: x is {}, w is {}; wanted one weight for each element of x's last dim", op, to_string(x),
      to_string(w));
}

}  // namespace

Types RmsNorm::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 2, 2);
  require_weight(kName, in[0], in[1]);
  return {in[0]};
}

std::vector<Strategy> RmsNorm::place(std::span<const TensorType> in) const {
  return place_rows(in[0], {true, false}, {true});
}

std::vector<Value> RmsNorm::gradient(Graph& g, const Node& n, std::span<const Value> dy) const {
  return g.add(RmsNormGrad{.eps = eps}, {n.in[0], n.in[1], dy[0]});
}

Cost RmsNorm::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return memory_cost(in, out, 4.0);
}

std::string RmsNorm::describe() const {
  return fmt::format("eps={}", eps);
}

Types RmsNormGrad::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 3, 3);
  require_weight(kName, in[0], in[1]);
  require_same_type(kName, "x", in[0], "dy", in[2]);
  return {in[0], {.dtype = gradient_dtype(in[0].dtype), .dims = in[1].dims}};
}

std::vector<Strategy> RmsNormGrad::place(std::span<const TensorType> in) const {
  return place_rows(in[0], {true, false, true}, {true, false});
}

std::vector<Value> RmsNormGrad::gradient(Graph&, const Node& n, std::span<const Value>) const {
  return no_gradient(n);
}

Cost RmsNormGrad::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return memory_cost(in, out, 12.0);
}

std::span<const Variant> RmsNormGrad::variants() {
  return with_row_sums<1>();
}

std::string RmsNormGrad::describe() const {
  return fmt::format("eps={}", eps);
}

}  // namespace tokamak
