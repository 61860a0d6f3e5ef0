#include "tokamak/ops/norm/norm.h"

#include "tokamak/ops/test_op_case.h"

namespace tokamak {

template <>
OpCases cases_of<RmsNorm>() {
  CasesOf<RmsNorm> c;
  c.good("batched", {}, {f32({2, 6, 8}), f32({8})}).flops = 4.0 * 96;
  c.good("one row, odd width", {.eps = 1e-6F}, {f32({1, 131}), f32({131})});
  c.good("one column", {}, {f32({3, 1}), f32({1})});
  c.good("wide", {}, {f32({5, 520}), f32({520})}).check_gradient = false;
  c.good("very wide", {}, {f32({3, 8200}), f32({8200})}).check_gradient = false;
  c.good("a large eps", {.eps = 0.5F}, {f32({6, 33}), f32({33})}).fill = {{.scale = 0.5}};
  c.good("zero-centered", {.zero_centered = true}, {f32({2, 6, 8}), f32({8})});
  c.good("zero-centered, odd width", {.zero_centered = true}, {f32({3, 131}), f32({131})}).fill = {
      {}, {.scale = 0.1}};
  c.bad("weight of another width", {}, {f32({6, 5}), f32({6})});
  c.bad("weight missing", {}, {f32({6, 5})});
  c.bad("of tokens", {}, {i32({6, 5}), i32({5})});
  return c.cases;
}

template <>
OpCases cases_of<AddRmsNorm>() {
  CasesOf<AddRmsNorm> c;
  c.good("batched", {}, {f32({2, 6, 8}), f32({2, 6, 8}), f32({8})}).flops = 5.0 * 96;
  c.good("one row, odd width", {.eps = 1e-6F}, {f32({1, 131}), f32({1, 131}), f32({131})});
  c.good("several rows", {}, {f32({67, 17}), f32({67, 17}), f32({17})});
  c.good("zero-centered", {.zero_centered = true}, {f32({6, 24}), f32({6, 24}), f32({24})});
  c.bad("branch differs", {}, {f32({6, 5}), f32({5, 6}), f32({5})});
  c.bad("weight of another width", {}, {f32({6, 5}), f32({6, 5}), f32({6})});
  c.bad("weight missing", {}, {f32({6, 5}), f32({6, 5})});
  return c.cases;
}

template <>
OpCases cases_of<RmsNormGrad>() {
  CasesOf<RmsNormGrad> c;
  const auto good = [&](const std::string& name, const Dims& x) {
    const Types in{f32(x), f32({x.back()}), f32(x)};
    c.good(name, {}, in).check_gradient = false;
    c.good(name + ", with y", {.emits_y = true}, in).check_gradient = false;
    c.good(name + ", zero-centered with y", {.emits_y = true, .zero_centered = true}, in)
        .check_gradient = false;
  };
  good("batched", {2, 6, 8});
  good("one row, odd width", {1, 131});
  good("several blocks of rows", {67, 17});
  good("several groups of rows", {540, 1032});
  good("very wide", {3, 8200});
  c.bad("dy differs", {}, {f32({6, 5}), f32({5}), f32({5, 6})});
  return c.cases;
}

template <>
OpCases cases_of<LayerNorm>() {
  CasesOf<LayerNorm> c;
  c.good("batched", {}, {f32({2, 6, 8}), f32({8}), f32({8})}).flops = 7.0 * 96;
  c.good("one row, odd width", {}, {f32({1, 131}), f32({131}), f32({131})});
  c.good("mean far from zero", {}, {f32({6, 33}), f32({33}), f32({33})}).fill = {{.shift = 4.0}};
  c.good("wide", {}, {f32({5, 520}), f32({520}), f32({520})}).check_gradient = false;
  c.good("very wide", {}, {f32({3, 8200}), f32({8200}), f32({8200})}).check_gradient = false;
  c.bad("weight of another width", {}, {f32({6, 5}), f32({6}), f32({5})});
  c.bad("bias of another width", {}, {f32({6, 5}), f32({5}), f32({6})});
  c.bad("bias missing", {}, {f32({6, 5}), f32({5})});
  c.bad("zero-centered", {.zero_centered = true}, {f32({6, 5}), f32({5}), f32({5})});
  return c.cases;
}

template <>
OpCases cases_of<AddLayerNorm>() {
  CasesOf<AddLayerNorm> c;
  const auto good = [&](const std::string& name, const Dims& x) -> OpCase& {
    const int64_t D = x.back();
    return c.good(name, {}, {f32(x), f32(x), f32({D}), f32({D})});
  };
  good("batched", {2, 6, 8}).flops = 8.0 * 96;
  good("one row, odd width", {1, 131});
  good("several rows", {67, 17});
  good("wide", {5, 520}).check_gradient = false;
  good("very wide", {3, 8200}).check_gradient = false;
  c.bad("branch differs", {}, {f32({6, 5}), f32({5, 6}), f32({5}), f32({5})});
  c.bad("bias of another width", {}, {f32({6, 5}), f32({6, 5}), f32({5}), f32({6})});
  c.bad("bias missing", {}, {f32({6, 5}), f32({6, 5}), f32({5})});
  return c.cases;
}

template <>
OpCases cases_of<LayerNormGrad>() {
  CasesOf<LayerNormGrad> c;
  const auto good = [&](const std::string& name, Dims x) {
    const int64_t D = x.back();
    c.good(name, {}, {f32(x), f32({D}), f32(x)}).check_gradient = false;
  };
  good("batched", {2, 6, 8});
  good("one row, odd width", {1, 131});
  good("several blocks of rows", {67, 17});
  good("several groups of rows", {540, 1032});
  good("very wide", {3, 8200});
  good("a warp to a row in bf16", {70, 256});
  good("rows of idle threads", {600, 1600});
  good("mean far from zero", {40, 1600});
  c.cases.good.back().fill = {{.shift = 4.0}};
  c.bad("dy differs", {}, {f32({6, 5}), f32({5}), f32({5, 6})});
  return c.cases;
}

}  // namespace tokamak
