#include "tokamak/ops/norm/layer_norm.h"

#include "tokamak/ops/elementwise/add.h"
#include "tokamak/ops/row_sums.h"

namespace tokamak {
namespace {

void require_parameter(std::string_view op, std::string_view name, const TensorType& x,
                       const TensorType& w) {
  TOK_REQUIRE(
      !x.dims.empty() && is_float(x.dtype) && w.dtype == x.dtype && w.dims == Dims{x.dims.back()},
      "{}: x is {}, {} is {}; wanted one element for each of x's last dim", op, to_string(x), name,
      to_string(w));
}

}  // namespace

Types LayerNorm::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 3, 3);
  require_parameter(kName, "w", in[0], in[1]);
  require_parameter(kName, "b", in[0], in[2]);
  return {in[0]};
}

std::vector<Strategy> LayerNorm::place(std::span<const TensorType> in) const {
  return place_rows(in[0], {true, false, false}, {true});
}

std::vector<Value> LayerNorm::gradient(Graph& g, const Node& n, std::span<const Value> dy) const {
  return g.add(LayerNormGrad{.eps = eps}, {n.in[0], n.in[1], dy[0]});
}

Cost LayerNorm::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return memory_cost(in, out, 7.0);
}

std::optional<AnyOp> LayerNorm::after(const AnyOp& producer) const {
  if (producer.as<Add>() == nullptr) return std::nullopt;
  return any_op(AddLayerNorm{.eps = eps});
}

std::string LayerNorm::describe() const {
  return fmt::format("eps={}", eps);
}

Types AddLayerNorm::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 4, 4);
  require_same_type(kName, "x", in[0], "branch", in[1]);
  require_parameter(kName, "w", in[0], in[2]);
  require_parameter(kName, "b", in[0], in[3]);
  return {in[0], in[0]};
}

std::vector<Strategy> AddLayerNorm::place(std::span<const TensorType> in) const {
  return place_rows(in[0], {true, true, false, false}, {true, true});
}

std::vector<Value> AddLayerNorm::gradient(Graph& g, const Node& n,
                                          std::span<const Value> dy) const {
  Value dx = dy[0];
  Value dw;
  Value db;
  if (dy[1].valid()) {
    const Value sum = g.apply(Add{}, {n.in[0], n.in[1]});
    const std::vector<Value> grad = g.add(LayerNormGrad{.eps = eps}, {sum, n.in[2], dy[1]});
    dx = dx.valid() ? g.apply(Add{}, {dx, grad[0]}) : grad[0];
    dw = grad[1];
    db = grad[2];
  }
  return {dx, dx, dw, db};
}

Cost AddLayerNorm::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return memory_cost(in, out, 8.0);
}

std::string AddLayerNorm::describe() const {
  return fmt::format("eps={}", eps);
}

Types LayerNormGrad::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 3, 3);
  require_parameter(kName, "w", in[0], in[1]);
  require_same_type(kName, "x", in[0], "dy", in[2]);
  const TensorType parameter{.dtype = gradient_dtype(in[0].dtype), .dims = in[1].dims};
  return {in[0], parameter, parameter};
}

std::vector<Strategy> LayerNormGrad::place(std::span<const TensorType> in) const {
  return place_rows(in[0], {true, false, true}, {true, false, false});
}

Cost LayerNormGrad::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return memory_cost(in, out, 19.0);
}

std::span<const Variant> LayerNormGrad::variants() {
  return with_row_sums<2>();
}

std::string LayerNormGrad::describe() const {
  return fmt::format("eps={}", eps);
}

}  // namespace tokamak
