#include "tokamak/ops/float8/transpose_quantized.h"

#include "tokamak/ops/test_op_case.h"

namespace tokamak {

template <>
OpCases cases_of<TransposeQuantized>() {
  using enum ScaleGrid;
  CasesOf<TransposeQuantized> c;
  const auto quantized = [](int64_t rows, int64_t columns) {
    return TensorType{.dtype = DType::kE4M3, .dims = {rows, columns}};
  };
  const auto add = [&](const std::string& name, ScaleGrid grid, int64_t rows, int64_t columns) {
    Types in{quantized(rows, columns)};
    if (grid == kBlocks) in.push_back(f32(scale_dims(grid, rows, columns)));
    auto& one = c.good(name, {.grid = grid}, in);
    one.check_gradient = false;
    one.float_stays = {1};
  };
  add("tensor", kTensor, 256, 384);
  add("tensor, odd columns", kTensor, 48, 37);
  add("blocks", kBlocks, 384, 896);
  add("parts of blocks", kBlocks, 144, 200);
  c.bad("scales of rows", {.grid = kRows}, {quantized(16, 16)});
  c.bad("odd rows", {}, {quantized(10, 16)});
  c.bad("scales of another grid", {.grid = kBlocks}, {quantized(16, 16), f32({4})});
  return c.cases;
}

}  // namespace tokamak
