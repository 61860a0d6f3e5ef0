#include "tokamak/ops/float8/transpose_codes.h"

#include "tokamak/ops/test_op_case.h"

namespace tokamak {

template <>
OpCases cases_of<TransposeCodes>() {
  using enum ScaleGrid;
  CasesOf<TransposeCodes> c;
  const auto codes = [](int64_t rows, int64_t columns) {
    return TensorType{.dtype = DType::kE4M3, .dims = {rows, columns}};
  };
  const auto add = [&](const std::string& name, ScaleGrid grid, int64_t rows, int64_t columns) {
    Types in{codes(rows, columns)};
    if (grid == kBlocks) in.push_back(f32(scale_dims(grid, rows, columns)));
    auto& one = c.good(name, {.grid = grid}, in);
    one.check_gradient = false;
    one.float_stays = {1};
  };
  add("tensor", kTensor, 256, 384);
  add("tensor, odd columns", kTensor, 48, 37);
  add("blocks", kBlocks, 384, 896);
  add("parts of blocks", kBlocks, 144, 200);
  c.bad("scales of rows", {.grid = kRows}, {codes(16, 16)});
  c.bad("odd rows", {}, {codes(10, 16)});
  c.bad("scales of another grid", {.grid = kBlocks}, {codes(16, 16), f32({4})});
  return c.cases;
}

}  // namespace tokamak
