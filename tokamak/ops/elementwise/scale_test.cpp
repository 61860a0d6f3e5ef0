#include "tokamak/ops/elementwise/scale.h"

#include "tokamak/ops/test_op_case.h"

namespace tokamak {

template <>
OpCases cases_of<Scale>() {
  CasesOf<Scale> c;
  c.good("small", {.a = 6.0}, {f32({3, 5})}).flops = 15;
  c.good("a root", {.a = 33.94112549695428}, {f32({2, 67, 3})});
  c.good("negative", {.a = -0.25}, {f32({1031})});
  c.bad("of tokens", {.a = 2.0}, {i32({3})});
  c.bad("two inputs", {.a = 2.0}, {f32({3}), f32({3})});
  return c.cases;
}

}  // namespace tokamak
