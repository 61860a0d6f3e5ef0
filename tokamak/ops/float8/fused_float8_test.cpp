#include "tokamak/ops/float8/fused_float8.h"

#include "tokamak/ops/attention/rope.h"
#include "tokamak/ops/elementwise/gelu.h"
#include "tokamak/ops/elementwise/swiglu.h"
#include "tokamak/ops/norm/norm.h"
#include "tokamak/ops/test_op_case.h"

namespace tokamak {
namespace {

using QuantizeLayout = Quantize::Layout;

template <class T>
FusedFloat8 with_maximum(T first, size_t outputs) {
  FusedFloat8 op{.first = any_op(std::move(first)), .stores = std::vector<bool>(outputs, true)};
  op.readers = {{.of = output_with_maximum(op.first), .op = Amax{}}};
  return op;
}

SwigluGrad gates(bool emits_y) {
  return {.emits_y = emits_y, .packed = true};
}

FusedFloat8 maxima_of_gates(bool emits_y, std::vector<Float8Reader> readers) {
  return {.first = any_op(gates(emits_y)),
          .stores = std::vector<bool>(emits_y ? 2 : 1, false),
          .readers = std::move(readers)};
}

Float8Reader quantized_of(int out, ScaleGrid grid, QuantizeLayout layout, DType format) {
  return {.of = out,
          .op = Quantize{.format = format,
                         .grid = grid,
                         .layout = layout,
                         .power_of_two = grid == ScaleGrid::kRows},
          .takes_maxima = true};
}

// Quantized values of rows of the last output of `first`, in its place or in addition to it.
template <class T>
FusedFloat8 with_quantized(T first, size_t outputs, ScaleGrid grid, bool stores,
                           bool power_of_two) {
  FusedFloat8 op{.first = any_op(std::move(first)), .stores = std::vector<bool>(outputs, true)};
  const int y = output_with_maximum(op.first);
  op.stores[y] = stores;
  op.readers = {{.of = y,
                 .op = Quantize{.grid = grid,
                                .power_of_two = power_of_two,
                                .has_amax = stores && grid == ScaleGrid::kRows}}};
  return op;
}

void add_rows(CasesOf<FusedFloat8>& c) {
  const auto add = [&](const std::string& name, const auto& first, size_t outputs,
                       const Types& in) {
    // Among many rows one has a maximum whose power of two turns where values are rounded.
    const bool is_small = in[0].numel() < 6000;
    for (const ScaleGrid grid : {ScaleGrid::kRows, ScaleGrid::kSegments}) {
      for (const bool stores : {false, true}) {
        auto& made = c.good(
            fmt::format("{} with codes of {}{}", name, name_of(grid), stores ? " and values" : ""),
            with_quantized(first, outputs, grid, stores, stores && is_small), in);
        made.check_gradient = false;
        made.bound = 0.05;
      }
    }
  };
  for (const int64_t D : {33, 96, 384, 9216}) {
    const TensorType x = f32({D > 1024 ? 5 : 21, D});
    const TensorType p = f32({D});
    add(fmt::format("norm of {}", D), RmsNorm{}, 1, {x, p});
    add(fmt::format("sum and norm of {}", D), AddRmsNorm{}, 2, {x, x, p});
    add(fmt::format("layer norm of {}", D), LayerNorm{}, 1, {x, p, p});
    add(fmt::format("sum and layer norm of {}", D), AddLayerNorm{}, 2, {x, x, p, p});
  }
  for (const int64_t F : {131, 1024, 8320}) {
    const int64_t rows = F > 1024 ? 1 : 7;
    const TensorType x = f32({3, rows, F});
    add(fmt::format("swiglu of {}", F), Swiglu{}, 1, {x, x});
    add(fmt::format("packed swiglu of {}", F), Swiglu{.packed = true}, 1, {f32({3, rows, 2 * F})});
    add(fmt::format("gelu of {}", F), Gelu{}, 1, {x});
  }
  const TensorType x = f32({3, 7, 1032});
  add("zero-centered norm", RmsNorm{.zero_centered = true}, 1, {x, f32({1032})});
  add("gate of gelu", Swiglu{.kind = GateKind::kGelu}, 1, {x, x});
}

// Runs with a scale in the table, and without one.
void add_delayed_case(CasesOf<FusedFloat8>& c, const std::string& name, const FusedFloat8& op,
                      const Types& in) {
  Types all = in;
  for (const Float8Reader& reader : op.readers) {
    if (reader.takes_maxima) all.push_back(f32({1}));
    all.push_back(f32({5}));
  }
  for (const int64_t scale : {0, 64}) {
    auto& made = c.good(fmt::format("{} and {}", name, scale), op, all);
    made.check_gradient = false;
    made.bound = 0.05;
    made.fill.resize(in.size());
    for (const Float8Reader& reader : op.readers) {
      if (reader.takes_maxima) made.fill.push_back({.values = {3}});
      made.fill.push_back({.values = {scale, 7}});
    }
    for (size_t i = in.size(); i < all.size(); ++i) made.float_stays.push_back(static_cast<int>(i));
  }
}

void add_delayed_rows(CasesOf<FusedFloat8>& c) {
  const auto add = [&](const std::string& name, const auto& first, size_t outputs,
                       const Types& in) {
    FusedFloat8 op{.first = any_op(first), .stores = std::vector<bool>(outputs, false)};
    const int y = output_with_maximum(op.first);
    op.readers = {{.of = y, .op = Amax{.is_gated = true}}};
    add_delayed_case(c, name + ", maximum", op, in);
    for (const bool stores : {false, true}) {
      op.stores.assign(outputs, true);
      op.stores[y] = stores;
      op.readers = {
          {.of = y,
           .op = Quantize{.power_of_two = stores, .is_delayed = true, .has_amax = !stores},
           .takes_maxima = true}};
      add_delayed_case(c, name + (stores ? ", codes and values" : ", codes"), op, in);
    }
  };
  for (const int64_t D : {33, 384}) {
    const TensorType x = f32({21, D});
    const TensorType p = f32({D});
    add(fmt::format("norm of {}", D), RmsNorm{}, 1, {x, p});
    add(fmt::format("sum and norm of {}", D), AddRmsNorm{}, 2, {x, x, p});
    add(fmt::format("layer norm of {}", D), LayerNorm{}, 1, {x, p, p});
    add(fmt::format("sum and layer norm of {}", D), AddLayerNorm{}, 2, {x, x, p, p});
    add(fmt::format("swiglu of {}", D), Swiglu{}, 1, {x, x});
    add(fmt::format("packed swiglu of {}", D), Swiglu{.packed = true}, 1, {f32({21, 2 * D})});
    add(fmt::format("gelu of {}", D), Gelu{}, 1, {x});
  }
}

void add_delayed_tiles(CasesOf<FusedFloat8>& c, int64_t M, int64_t F) {
  const Types in{f32({M, 2 * F}), f32({M, F})};
  const std::string of = fmt::format(" of {} x {}", M, F);
  add_delayed_case(c, "a maximum" + of,
                   maxima_of_gates(true, {{.of = 0, .op = Amax{.is_gated = true}}}), in);
  const auto quantized = [](int out, QuantizeLayout layout, DType format, bool has_amax) {
    return Float8Reader{
        .of = out,
        .op =
            Quantize{.format = format, .layout = layout, .is_delayed = true, .has_amax = has_amax},
        .takes_maxima = true};
  };
  add_delayed_case(
      c, "codes" + of,
      maxima_of_gates(true, {quantized(0, QuantizeLayout::kBoth, DType::kE5M2, true),
                             quantized(1, QuantizeLayout::kTransposed, DType::kE4M3, false)}),
      in);
  add_delayed_case(c, "codes with both maxima" + of,
                   maxima_of_gates(true, {quantized(0, QuantizeLayout::kRows, DType::kE4M3, true),
                                          quantized(1, QuantizeLayout::kBoth, DType::kE4M3, true)}),
                   in);
}

void add_delayed_gelu(CasesOf<FusedFloat8>& c, int64_t M, int64_t F) {
  for (const GeluKind kind : {GeluKind::kTanh, GeluKind::kExact}) {
    FusedFloat8 op{.first = any_op(GeluGrad{.kind = kind, .emits_y = true}),
                   .stores = {false, false},
                   .readers = {{.of = 0, .op = Amax{.is_gated = true}}}};
    const std::string of = fmt::format(" of {} of {} x {}", name_of(kind), M, F);
    const Types in{f32({M, F}), f32({M, F})};
    add_delayed_case(c, "a maximum" + of, op, in);
    op.readers = {{.of = 0,
                   .op = Quantize{.format = DType::kE5M2,
                                  .layout = QuantizeLayout::kBoth,
                                  .is_delayed = true,
                                  .has_amax = true},
                   .takes_maxima = true},
                  {.of = 1,
                   .op = Quantize{.layout = QuantizeLayout::kTransposed, .is_delayed = true},
                   .takes_maxima = true}};
    add_delayed_case(c, "codes" + of, op, in);
    op.stores[0] = true;
    add_delayed_case(c, "codes and values" + of, op, in);
  }
}

void add_segments_of_tiles(CasesOf<FusedFloat8>& c, int64_t M, int64_t F) {
  const auto segments = [](int out, QuantizeLayout layout, DType format,
                           bool power_of_two = false) {
    return Float8Reader{.of = out,
                        .op = Quantize{.format = format,
                                       .grid = ScaleGrid::kSegments,
                                       .layout = layout,
                                       .power_of_two = power_of_two}};
  };
  const auto add = [&](const char* name, const FusedFloat8& op) {
    auto& made =
        c.good(fmt::format("{} of {} x {}", name, M, F), op, {f32({M, 2 * F}), f32({M, F})});
    made.check_gradient = false;
    made.bound = 0.05;
  };
  add("codes of segments",
      maxima_of_gates(true, {segments(0, QuantizeLayout::kRows, DType::kE4M3),
                             segments(0, QuantizeLayout::kTransposed, DType::kE4M3),
                             segments(1, QuantizeLayout::kTransposed, DType::kE4M3)}));
  add("codes of segments of rows",
      maxima_of_gates(true, {segments(1, QuantizeLayout::kRows, DType::kE4M3),
                             segments(0, QuantizeLayout::kRows, DType::kE5M2)}));
  add("codes of segments of columns",
      maxima_of_gates(false, {segments(0, QuantizeLayout::kTransposed, DType::kE5M2, M == 192)}));
  add("codes both ways of segments",
      maxima_of_gates(true, {segments(0, QuantizeLayout::kBoth, DType::kE4M3),
                             segments(1, QuantizeLayout::kBoth, DType::kE4M3)}));
}

void add_norms(CasesOf<FusedFloat8>& c) {
  for (const int64_t D : {33, 64, 2048, 2304, 9216}) {
    const TensorType x = f32({21, D});
    const TensorType p = f32({D});
    const auto add = [&](const char* name, const FusedFloat8& op, const Types& in) {
      c.good(fmt::format("{} of {}", name, D), op, in).check_gradient = false;
    };
    add("norm", with_maximum(RmsNorm{}, 1), {x, p});
    add("sum and norm", with_maximum(AddRmsNorm{}, 2), {x, x, p});
    add("gradient of a norm", with_maximum(RmsNormGrad{}, 2), {x, p, x});
    add("gradient of a norm, with y", with_maximum(RmsNormGrad{.emits_y = true}, 3), {x, p, x});
    add("layer norm", with_maximum(LayerNorm{}, 1), {x, p, p});
    add("sum and layer norm", with_maximum(AddLayerNorm{}, 2), {x, x, p, p});
    add("gradient of a layer norm", with_maximum(LayerNormGrad{}, 3), {x, p, x});
  }
}

void add_maxima(CasesOf<FusedFloat8>& c) {
  for (const int64_t F : {131, 1024}) {
    const TensorType x = f32({19, F});
    const TensorType both = f32({19, 2 * F});
    const auto add = [&](const char* name, const FusedFloat8& op, const Types& in) {
      c.good(fmt::format("{} of {}", name, F), op, in).check_gradient = false;
    };
    add("swiglu", with_maximum(Swiglu{}, 1), {x, x});
    add("packed swiglu", with_maximum(Swiglu{.packed = true}, 1), {both});
    add("packed gelu gate", with_maximum(Swiglu{.packed = true, .kind = GateKind::kGelu}, 1),
        {both});
    add("gradient of swiglu", with_maximum(gates(false), 1), {both, x});
    add("gradient of swiglu with y", with_maximum(gates(true), 2), {both, x});
    add("gelu", with_maximum(Gelu{}, 1), {x});
    add("gradient of gelu", with_maximum(GeluGrad{}, 1), {x, x});
    add("gradient of gelu with y", with_maximum(GeluGrad{.emits_y = true}, 2), {x, x});
  }
  for (const int64_t dim : {6, 16, 272}) {
    const TensorType heads = f32({2, 5, 6, dim});
    const TensorType positions = i32({2, 5});
    const auto add = [&](const char* name, const FusedFloat8& op, const Types& in) {
      auto& made = c.good(fmt::format("{} of {}", name, dim), op, in);
      made.check_gradient = false;
      made.fill.resize(in.size());
      made.fill.back().limit = 40;
    };
    add("rope", with_maximum(Rope{}, 1), {heads, positions});
    add("rope of some heads", with_maximum(Rope{.inverse = true, .num_turned = 4}, 1),
        {heads, positions});
    add("rope side by side", with_maximum(RopeConcat{.num_turned = 2}, 1),
        {heads, f32({2, 5, 2, dim}), f32({2, 5, 2, dim}), positions});
  }
}

void add_tiles(CasesOf<FusedFloat8>& c, int64_t M, int64_t F) {
  const Types in{f32({M, 2 * F}), f32({M, F})};
  const std::string of = fmt::format(" of {} x {}", M, F);
  const TensorType one = f32({1});
  const Amax rows{.grid = ScaleGrid::kRows};
  const Amax columns{.grid = ScaleGrid::kRows, .transposed = true};
  const auto maxima = [&](const std::string& name, const FusedFloat8& op) {
    c.good(name + of, op, in).check_gradient = false;
  };
  maxima("a maximum", maxima_of_gates(true, {{.of = 0, .op = Amax{}}}));
  maxima("maxima of rows and columns", maxima_of_gates(true, {{.of = 0, .op = rows},
                                                              {.of = 1, .op = columns},
                                                              {.of = 0, .op = columns},
                                                              {.of = 1, .op = Amax{}},
                                                              {.of = 1, .op = rows}}));
  const auto quantized = [&](const std::string& name, const FusedFloat8& op, const Types& more) {
    Types all = in;
    all.insert(all.end(), more.begin(), more.end());
    auto& made = c.good(name + of, op, all);
    made.check_gradient = false;
    made.bound = 0.05;
    made.fill.resize(2);
    made.fill.resize(all.size(), {.scale = 0.3, .shift = 3.0});
    for (size_t i = 2; i < all.size(); ++i) made.float_stays.push_back(static_cast<int>(i));
  };
  quantized(
      "codes",
      maxima_of_gates(
          true, {quantized_of(0, ScaleGrid::kTensor, QuantizeLayout::kBoth, DType::kE5M2),
                 quantized_of(1, ScaleGrid::kTensor, QuantizeLayout::kTransposed, DType::kE4M3)}),
      {one, one});
  quantized("codes without y",
            maxima_of_gates(
                false, {quantized_of(0, ScaleGrid::kTensor, QuantizeLayout::kRows, DType::kE4M3)}),
            {one});
  quantized(
      "both layouts of rows and columns",
      maxima_of_gates(
          true, {quantized_of(0, ScaleGrid::kRows, QuantizeLayout::kRows, DType::kE4M3),
                 quantized_of(0, ScaleGrid::kRows, QuantizeLayout::kTransposed, DType::kE4M3),
                 quantized_of(1, ScaleGrid::kRows, QuantizeLayout::kTransposed, DType::kE4M3)}),
      {f32({M}), f32({2 * F}), f32({F})});
}

}  // namespace

template <>
OpCases cases_of<FusedFloat8>() {
  CasesOf<FusedFloat8> c;
  add_norms(c);
  add_maxima(c);
  add_tiles(c, 37, 75);
  add_tiles(c, 192, 256);
  add_tiles(c, 150, 136);
  add_rows(c);
  add_delayed_rows(c);
  add_delayed_gelu(c, 37, 75);
  add_delayed_gelu(c, 192, 256);
  add_delayed_tiles(c, 37, 75);
  add_delayed_tiles(c, 192, 256);
  add_segments_of_tiles(c, 192, 256);
  add_segments_of_tiles(c, 37, 128);
  const TensorType x = f32({4, 8});
  c.bad("a reader of no output", with_maximum(SwigluGrad{}, 2), {x, x, x});
  c.bad("stores more than there is", with_maximum(RmsNorm{}, 2), {x, f32({8})});
  c.bad("no maxima",
        maxima_of_gates(false,
                        {quantized_of(0, ScaleGrid::kTensor, QuantizeLayout::kRows, DType::kE4M3)}),
        {});
  return c.cases;
}

}  // namespace tokamak
