#include "tokamak/ops/elementwise/swiglu.h"

#include <fmt/format.h>

#include "tokamak/ops/elementwise/gate_codes.h"
#include "tokamak/ops/op_case.h"

namespace tokamak {
namespace {

TensorType gate_codes(Dims dims) {
  return {.dtype = DType::kE4M3, .dims = std::move(dims)};
}

TensorType bytes(Dims dims) {
  return {.dtype = DType::kU8, .dims = std::move(dims)};
}

}  // namespace

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
  for (const int64_t F : {5, 131, 384}) {
    for (const bool packed : {false, true}) {
      const Types in = packed ? Types{f32({3, 2 * F})} : Types{f32({3, F}), f32({3, F})};
      for (const GateKind kind : {GateKind::kSilu, GateKind::kGelu}) {
        c.good(fmt::format("with codes, {} {}{}", F, packed ? "packed" : "apart",
                           kind == GateKind::kGelu ? ", by gelu" : ""),
               {.packed = packed, .kind = kind, .makes_codes = true}, in)
            .check_gradient = false;
      }
    }
  }
  c.good("with codes of large and of tiny values", {.makes_codes = true},
         {f32({2, 256}), f32({2, 256})})
      .check_gradient = false;
  c.cases.good.back().fill = {{.scale = 1e30}, {.scale = 1e-36}};
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
  // Scales from 2^-3 to 2^2.
  const Fill scales{.values = {124, 129, 127, 125, 126}};
  for (const int64_t F : {5, 131, 384}) {
    const TensorType dy = f32({3, F});
    const Types apart{gate_codes({3, F}), bytes({3, gate_scales(F)}), gate_codes({3, F}),
                      bytes({3, gate_scales(F)}), dy};
    const Types both{gate_codes({3, 2 * F}), bytes({3, 2 * gate_scales(F)}), dy};
    for (const bool packed : {false, true}) {
      for (const bool emits_y : {false, true}) {
        for (const GateKind kind : {GateKind::kSilu, GateKind::kGelu}) {
          const SwigluGrad op{
              .emits_y = emits_y, .packed = packed, .kind = kind, .gates = GateInputs::kCodes};
          OpCase& made = c.good(
              fmt::format("of codes, {} {}{}{}", F, packed ? "packed" : "apart",
                          emits_y ? " with y" : "", kind == GateKind::kGelu ? ", by gelu" : ""),
              op, packed ? both : apart);
          made.check_gradient = false;
          made.fill = {{}, scales, {}};
          if (!packed) made.fill = {{}, scales, {}, scales};
        }
      }
    }
  }
  const SwigluGrad of_codes{.packed = true, .gates = GateInputs::kCodes};
  c.bad("values in place of codes", of_codes, {f32({3, 8}), bytes({3, 2}), f32({3, 4})});
  c.bad("scales of one half", of_codes, {gate_codes({3, 8}), bytes({3, 1}), f32({3, 4})});
  c.bad("codes of dy", of_codes, {gate_codes({3, 8}), bytes({3, 2}), gate_codes({3, 4})});
  c.bad("packed dy of full width", {.packed = true}, {f32({3, 6}), f32({3, 6})});
  c.bad("dy differs", {}, {f32({3, 5}), f32({3, 5}), f32({5, 3})});
  return c.cases;
}

}  // namespace tokamak
