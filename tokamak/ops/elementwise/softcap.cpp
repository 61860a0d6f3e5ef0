#include "tokamak/ops/elementwise/softcap.h"

namespace tokamak {

Types Softcap::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 1, 1);
  TOK_REQUIRE(is_float(in[0].dtype), "softcap: wanted a float type, got {}", to_string(in[0]));
  TOK_REQUIRE(cap > 0.0, "softcap: wanted a cap above 0, got {}", cap);
  return {in[0]};
}

std::vector<Strategy> Softcap::place(std::span<const TensorType> in) const {
  return place_elementwise(in, 1);
}

Cost Softcap::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return memory_cost(in, out, 10.0);
}

std::string Softcap::describe() const {
  return fmt::format("cap={}", cap);
}

}  // namespace tokamak
