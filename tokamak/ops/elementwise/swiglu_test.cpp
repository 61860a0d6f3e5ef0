#include "tokamak/ops/elementwise/swiglu.h"

#include "tokamak/ops/test_op_case.h"

namespace tokamak {

template <>
OpCases cases_of<Swiglu>() {
  CasesOf<Swiglu> c;
  c.good("small", {}, {f32({2, 6, 4}), f32({2, 6, 4})}).flops = 5.0 * 48;
  c.good("odd width", {}, {f32({1, 131}), f32({1, 131})});
  c.good("large arguments", {}, {f32({6, 40}), f32({6, 40})}).fill = {{.scale = 40.0}};
  c.good("packed", {.packed = true}, {f32({2, 6, 8})}).flops = 5.0 * 48;
  c.good("packed, whole words", {.packed = true}, {f32({5, 48})});
  c.good("packed, odd width", {.packed = true}, {f32({3, 262})});
  c.good("by gelu", {.kind = GateKind::kGelu}, {f32({2, 6, 4}), f32({2, 6, 4})}).flops = 11.0 * 48;
  c.good("by gelu, large arguments", {.kind = GateKind::kGelu}, {f32({6, 40}), f32({6, 40})})
      .fill = {{.scale = 40.0}};
  c.good("by gelu, packed", {.packed = true, .kind = GateKind::kGelu}, {f32({3, 262})});
  c.bad("packed in an odd width", {.packed = true}, {f32({3, 5})});
  c.bad("dims differ", {}, {f32({3, 5}), f32({5, 3})});
  c.bad("no up", {}, {f32({3})});
  return c.cases;
}

template <>
OpCases cases_of<SwigluGrad>() {
  CasesOf<SwigluGrad> c;
  c.good("small", {}, {f32({2, 6, 4}), f32({2, 6, 4}), f32({2, 6, 4})}).check_gradient = false;
  c.good("odd width", {}, {f32({1, 131}), f32({1, 131}), f32({1, 131})}).check_gradient = false;
  c.good("with y", {.emits_y = true}, {f32({2, 6, 4}), f32({2, 6, 4}), f32({2, 6, 4})})
      .check_gradient = false;
  c.good("with y, odd width", {.emits_y = true}, {f32({1, 131}), f32({1, 131}), f32({1, 131})})
      .check_gradient = false;
  c.good("packed", {.packed = true}, {f32({2, 6, 8}), f32({2, 6, 4})}).check_gradient = false;
  c.good("packed, odd width", {.packed = true}, {f32({3, 262}), f32({3, 131})}).check_gradient =
      false;
  c.good("packed with y", {.emits_y = true, .packed = true}, {f32({5, 48}), f32({5, 24})})
      .check_gradient = false;
  c.good("by gelu", {.kind = GateKind::kGelu}, {f32({1, 131}), f32({1, 131}), f32({1, 131})})
      .check_gradient = false;
  c.good("by gelu, packed with y", {.emits_y = true, .packed = true, .kind = GateKind::kGelu},
         {f32({5, 48}), f32({5, 24})})
      .check_gradient = false;
  c.bad("packed dy of full width", {.packed = true}, {f32({3, 6}), f32({3, 6})});
  c.bad("dy differs", {}, {f32({3, 5}), f32({3, 5}), f32({5, 3})});
  return c.cases;
}

}  // namespace tokamak
