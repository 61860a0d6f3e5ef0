#include "tokamak/ops/layout/reshape.h"

#include "tokamak/ops/test_op_case.h"

namespace tokamak {

template <>
OpCases cases_of<Reshape>() {
  CasesOf<Reshape> c;
  c.good("split heads", {.dims = {0, 0, -1, 4}}, {f32({2, 3, 8})});
  c.good("join heads", {.dims = {0, 0, -1}}, {f32({2, 3, 4, 5})});
  c.good("rows", {.dims = {-1, 4}}, {f32({2, 3, 8})});
  c.bad("does not fill", {.dims = {5, 5}}, {f32({2, 3, 8})});
  return c.cases;
}

}  // namespace tokamak
