#include "tokamak/ops/layout/slice_rows.h"

#include "tokamak/ops/test_op_case.h"

namespace tokamak {

template <>
OpCases cases_of<SliceRows>() {
  CasesOf<SliceRows> c;
  c.good("middle", {.begin = 1, .end = 3}, {f32({5, 6, 4})}).check_gradient = false;
  c.good("last of a vector", {.begin = 6, .end = 7}, {f32({7})}).check_gradient = false;
  c.bad("past the end", {.begin = 3, .end = 6}, {f32({5, 4})});
  c.bad("empty", {.begin = 3, .end = 3}, {f32({5, 4})});
  return c.cases;
}

}  // namespace tokamak
