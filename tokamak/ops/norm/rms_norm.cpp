#include "tokamak/ops/norm/rms_norm.h"

#include "tokamak/ops/elementwise/add.h"
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

std::optional<AnyOp> RmsNorm::after(const AnyOp& producer) const {
  if (producer.as<Add>() == nullptr) return std::nullopt;
  return any_op(AddRmsNorm{.eps = eps});
}

std::string RmsNorm::describe() const {
  return fmt::format("eps={}", eps);
}

Types AddRmsNorm::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 3, 3);
  require_same_type(kName, "x", in[0], "branch", in[1]);
  require_weight(kName, in[0], in[2]);
  return {in[0], in[0]};
}

std::vector<Strategy> AddRmsNorm::place(std::span<const TensorType> in) const {
  return place_rows(in[0], {true, true, false}, {true, true});
}

std::vector<Value> AddRmsNorm::gradient(Graph& g, const Node& n, std::span<const Value> dy) const {
  const Value sum = g.apply(Add{}, {n.in[0], n.in[1]});
  Value dx = dy[0];
  Value dw;
  if (dy[1].valid()) {
    const std::vector<Value> grad = g.add(RmsNormGrad{.eps = eps}, {sum, n.in[2], dy[1]});
    dx = dx.valid() ? g.apply(Add{}, {dx, grad[0]}) : grad[0];
    dw = grad[1];
  }
  return {dx, dx, dw};
}

Cost AddRmsNorm::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return memory_cost(in, out, 5.0);
}

std::string AddRmsNorm::describe() const {
  return fmt::format("eps={}", eps);
}

Types RmsNormGrad::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 3, 3);
  require_weight(kName, in[0], in[1]);
  require_same_type(kName, "x", in[0], "dy", in[2]);
  Types out{in[0], {.dtype = gradient_dtype(in[0].dtype), .dims = in[1].dims}};
  if (emits_y) out.push_back(in[0]);
  return out;
}

std::vector<Strategy> RmsNormGrad::place(std::span<const TensorType> in) const {
  std::vector<bool> out_by_row{true, false};
  if (emits_y) out_by_row.push_back(true);
  return place_rows(in[0], {true, false, true}, out_by_row);
}

Cost RmsNormGrad::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return memory_cost(in, out, emits_y ? 14.0 : 12.0);
}

std::span<const Variant> RmsNormGrad::variants() {
  return with_row_sums<1>();
}

std::optional<AnyOp> RmsNormGrad::emitting(const AnyOp& forward) const {
  const auto* norm = forward.as<RmsNorm>();
  if (emits_y || norm == nullptr || norm->eps != eps) return std::nullopt;
  return any_op(RmsNormGrad{.eps = eps, .emits_y = true});
}

std::string RmsNormGrad::describe() const {
  return fmt::format("eps={}{}", eps, emits_y ? ", with y" : "");
}

}  // namespace tokamak
