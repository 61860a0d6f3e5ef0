#include "tokamak/ops/layout/concat_rows.h"

#include "tokamak/ops/test_op_case.h"

namespace tokamak {

template <>
OpCases cases_of<ConcatRows>() {
  CasesOf<ConcatRows> c;
  c.good("three", {}, {f32({2, 6}), f32({1, 6}), f32({4, 6})});
  c.good("one", {}, {f32({3, 2, 2})});
  c.bad("widths differ", {}, {f32({2, 6}), f32({2, 5})});
  c.bad("types differ", {}, {f32({2, 6}), i32({2, 6})});
  return c.cases;
}

}  // namespace tokamak
