#include "tokamak/ops/float8/scaled_matmul.h"

#include "tokamak/ops/test_op_case.h"

namespace tokamak {
namespace {

TensorType quantized(Dims dims, DType format = DType::kE4M3) {
  return {.dtype = format, .dims = std::move(dims)};
}

}  // namespace

template <>
OpCases cases_of<ScaledMatmul>() {
  using enum ScaleGrid;
  using enum Cost::Product;
  CasesOf<ScaledMatmul> c;
  const auto add = [&](const std::string& name, const ScaledMatmul& op, Dims a, int64_t n,
                       DType format = DType::kE4M3, bool bias = false) {
    const int64_t k = a.back();
    int64_t m = 1;
    for (size_t d = 0; d + 1 < a.size(); ++d) m *= a[d];
    const auto scales = [&](ScaleGrid grid, int64_t rows) {
      return TensorType{.dtype = scale_type(grid), .dims = scale_dims(grid, rows, k)};
    };
    Types in{quantized(std::move(a), format), scales(op.a_grid, m), quantized({n, k}),
             scales(op.b_grid, n)};
    if (bias) in.push_back({.dtype = op.out, .dims = {n}});
    auto& one = c.good(name, op, in);
    one.check_gradient = false;
    one.library_bound = 1e-3;  // Hopper's tensor cores keep 14 bits of sums of 8-bit products
    one.fill = {{}, {.scale = 0.001, .shift = 0.02}, {}, {.scale = 0.001, .shift = 0.03}};
    if (op.a_grid == kMx) {
      one.fill[1].values = {120, 121, 118, 122, 119};
      one.fill[3].values = {119, 123, 120};
    }
    one.float_stays = {1, 3, 4};
    one.flops = 2.0 * static_cast<double>(m * n * k);
  };
  add("tensor", {}, {2, 5, 48}, 32);
  add("tensor, E5M2", {.product = kInputGradient}, {40, 64}, 48, DType::kE5M2);
  add("tensor with bias", {}, {3, 32}, 16, DType::kE4M3, true);
  add("odd", {}, {7, 19}, 5);
  add("rows", {.a_grid = kRows, .b_grid = kRows, .product = kInputGradient}, {37, 64}, 48);
  add("segments by blocks", {.a_grid = kSegments, .b_grid = kBlocks}, {70, 272}, 160);
  add("segments by segments", {.a_grid = kSegments, .b_grid = kSegments, .product = kInputGradient},
      {128, 256}, 128);
  add("emulated", {.emulate = true}, {33, 32}, 32);
  add("by 32", {.a_grid = kMx, .b_grid = kMx, .product = kInputGradient}, {130, 160}, 48);
  add("by 32 of E5M2, odd", {.a_grid = kMx, .b_grid = kMx}, {7, 50}, 20, DType::kE5M2, true);
  c.bad("by 32 and by tensor", {.a_grid = kMx},
        {quantized({4, 32}),
         {.dtype = DType::kU8, .dims = {1, 1, 512}},
         quantized({4, 32}),
         f32({1})});
  c.bad("inner dims differ", {}, {quantized({4, 16}), f32({1}), quantized({4, 32}), f32({1})});
  c.bad("values", {}, {f32({4, 16}), f32({1}), quantized({4, 16}), f32({1})});
  c.bad("scales of another grid", {.a_grid = kRows},
        {quantized({4, 16}), f32({1}), quantized({4, 16}), f32({1})});
  return c.cases;
}

}  // namespace tokamak
