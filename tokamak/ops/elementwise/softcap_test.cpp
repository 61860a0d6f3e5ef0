#include "tokamak/ops/elementwise/softcap.h"

#include "tokamak/ops/test_op_case.h"

namespace tokamak {

template <>
OpCases cases_of<Softcap>() {
  CasesOf<Softcap> c;
  const auto good = [&](const char* name, double cap, Types in, double scale) -> OpCase& {
    OpCase& added = c.good(name, {.cap = cap}, std::move(in));
    added.fill = {{.scale = scale}};
    added.check_gradient = false;
    return added;
  };
  good("small", 30.0, {f32({3, 5})}, 1.0).flops = 150;
  good("far below the cap", 1e4, {f32({7, 67})}, 1.0);
  good("at the cap", 5.0, {f32({1031})}, 10.0);
  good("far above the cap", 0.5, {f32({2, 40, 3})}, 100.0);
  c.bad("no cap", {.cap = 0.0}, {f32({3})});
  c.bad("of tokens", {.cap = 2.0}, {i32({3})});
  return c.cases;
}

}  // namespace tokamak
