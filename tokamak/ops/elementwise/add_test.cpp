#include "tokamak/ops/elementwise/add.h"

#include "tokamak/ops/test_op_case.h"

namespace tokamak {

template <>
OpCases cases_of<Add>() {
  CasesOf<Add> c;
  c.good("small", {}, {f32({3, 5}), f32({3, 5})}).flops = 15;
  c.bad("dims differ", {}, {f32({3, 5}), f32({5, 3})});
  c.bad("one input", {}, {f32({3})});
  return c.cases;
}

}  // namespace tokamak
