#include "tokamak/ops/float8/code_counts.h"

#include <fmt/format.h>

#include "tokamak/ops/float8/quantize.h"

namespace tokamak {

Types CodeCounts::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 2, 2);
  const int shared = codes_per_element(in[0].dtype);
  TOK_REQUIRE(!in[0].dims.empty() && shared == (is_nvfp4(grid) ? 2 : 1),
              "code_counts: wanted codes by {}, got {}", name_of(grid), to_string(in[0]));
  const TensorType scales{.dtype = scale_type(grid),
                          .dims = scale_dims(grid, rows_of(in[0]), in[0].dims.back() * shared)};
  TOK_REQUIRE(in[1] == scales, "code_counts: inverse scales want {}, got {}", to_string(scales),
              to_string(in[1]));
  return {{.dtype = DType::kF64, .dims = {kNumCounts}},
          {.dtype = DType::kF32, .dims = {1}},
          {.dtype = DType::kF32, .dims = {1}}};
}

std::vector<Strategy> CodeCounts::place(std::span<const TensorType> in) const {
  return {replicate(in.size(), 3)};
}

Cost CodeCounts::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return memory_cost(in, out, 0.0);
}

std::string CodeCounts::describe() const {
  return std::string(name_of(grid));
}

}  // namespace tokamak
