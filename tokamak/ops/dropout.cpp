#include "tokamak/ops/dropout.h"

namespace tokamak {

Types Dropout::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 2, 2);
  TOK_REQUIRE(!in[0].dims.empty() && is_float(in[0].dtype),
              "dropout: x wants float [batch, ..], got {}", to_string(in[0]));
  TOK_REQUIRE(in[1].dtype == DType::kI64 && in[1].dims == Dims{in[0].dims[0]},
              "dropout: rows want int64[{}], got {}", in[0].dims[0], to_string(in[1]));
  TOK_REQUIRE(p >= 0.0 && p < 1.0, "dropout: p is {}, wanted at least 0 and under 1", p);
  return {in[0]};
}

// A cut within a sample would count its elements anew.
std::vector<Strategy> Dropout::place(std::span<const TensorType>) const {
  return {replicate(2, 1), {.in = {cut(0), cut(0)}, .out = {cut(0)}}};
}

std::vector<Value> Dropout::gradient(Graph& g, const Node& n, std::span<const Value> dy) const {
  return {g.apply(*this, {dy[0], n.in[1]})};
}

Cost Dropout::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return memory_cost(in, out, 1.0);
}

std::string Dropout::describe() const {
  return fmt::format("p={} stream={:x}", p, stream);
}

}  // namespace tokamak
