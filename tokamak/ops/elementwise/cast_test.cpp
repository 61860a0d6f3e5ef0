#include "tokamak/ops/elementwise/cast.h"

#include "tokamak/ops/test_op_case.h"

namespace tokamak {

template <>
OpCases cases_of<Cast>() {
  CasesOf<Cast> c;
  c.good("to double", {.dtype = DType::kF64}, {f32({4, 3})});
  c.good("to bf16", {.dtype = DType::kBF16}, {f32({4, 3})}).check_gradient = false;
  c.bad("of tokens", {}, {i32({3})});
  return c.cases;
}

}  // namespace tokamak
