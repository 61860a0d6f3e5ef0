#include "tokamak/ops/elementwise/gelu.h"

#include "tokamak/ops/test_op_case.h"

namespace tokamak {
namespace {

constexpr GeluKind kKinds[] = {GeluKind::kTanh, GeluKind::kExact, GeluKind::kQuick,
                               GeluKind::kSilu, GeluKind::kRelu,  GeluKind::kHyperbolic};

}  // namespace

template <>
OpCases cases_of<Gelu>() {
  CasesOf<Gelu> c;
  for (const GeluKind kind : kKinds) {
    const std::string name(name_of(kind));
    c.good(name + " small", {.kind = kind}, {f32({2, 6, 4})}).flops = 10.0 * 48;
    c.good(name + " odd width", {.kind = kind}, {f32({1, 131})});
    c.good(name + " wide range", {.kind = kind}, {f32({6, 40})}).fill = {{.scale = 6.0}};
  }
  c.bad("of tokens", {}, {i32({3})});
  return c.cases;
}

template <>
OpCases cases_of<GeluGrad>() {
  CasesOf<GeluGrad> c;
  for (const GeluKind kind : kKinds) {
    const std::string name(name_of(kind));
    c.good(name + " small", {.kind = kind}, {f32({2, 6, 4}), f32({2, 6, 4})}).check_gradient =
        false;
    c.good(name + " odd width", {.kind = kind}, {f32({1, 131}), f32({1, 131})}).check_gradient =
        false;
    c.good(name + " with y", {.kind = kind, .emits_y = true}, {f32({3, 131}), f32({3, 131})})
        .check_gradient = false;
  }
  c.bad("dims differ", {}, {f32({3, 5}), f32({5, 3})});
  return c.cases;
}

}  // namespace tokamak
