#include "tokamak/ops/optimizer/accumulate.h"

#include "tokamak/ops/test_op_case.h"

namespace tokamak {

template <>
OpCases cases_of<Accumulate>() {
  CasesOf<Accumulate> c;
  c.good("small", {.dtype = DType::kF32}, {f32({4, 3})}).check_gradient = false;
  c.good("tokens", {.dtype = DType::kF64}, {i32({6})}).check_gradient = false;
  c.bad("two inputs", {}, {f32({3}), f32({3})});
  return c.cases;
}

}  // namespace tokamak
