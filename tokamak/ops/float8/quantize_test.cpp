#include "tokamak/ops/float8/quantize.h"

#include <array>

#include <fmt/format.h>

#include "tokamak/ops/test_op_case.h"

namespace tokamak {
namespace {

constexpr std::array kGrids{ScaleGrid::kTensor, ScaleGrid::kRows, ScaleGrid::kSegments,
                            ScaleGrid::kBlocks};

TensorType maxima(int64_t rows, int64_t columns, ScaleGrid grid, bool transposed) {
  if (transposed) return f32(scale_dims(grid, columns, padded_tokens(rows)));
  return f32(scale_dims(grid, rows, columns));
}

}  // namespace

template <>
OpCases cases_of<Amax>() {
  CasesOf<Amax> c;
  for (const ScaleGrid grid : kGrids) {
    for (const bool transposed : {false, true}) {
      const Amax op{.grid = grid, .transposed = transposed};
      const std::string name = op.describe();
      c.good(name + ", odd", op, {f32({2, 37, 150})}).check_gradient = false;
      c.good(name + ", whole words", op, {f32({256, 384})}).check_gradient = false;
      auto& more = c.good(name + ", so far", op, {f32({33, 48}), maxima(33, 48, grid, transposed)});
      more.check_gradient = false;
      more.fill = {{}, {.scale = 0.1, .shift = 3.0}};
      more.float_stays = {1};
    }
  }
  c.good("of bfloat16", {.rounds_to = DType::kBF16}, {f32({64, 64})}).check_gradient = false;
  c.bad("1x32", {.grid = ScaleGrid::kMx}, {f32({4, 32})});
  for (const int64_t scale : {0, 3}) {
    OpCase& gated = c.good(fmt::format("gated by {}", scale), {.is_gated = true},
                           {f32({33, 64}), f32({1}), f32({5})});
    gated.check_gradient = false;
    gated.fill = {{}, {.values = {1}}, {.values = {scale, 7}}};
    gated.float_stays = {1, 2};
  }
  c.bad("a gate of rows", {.grid = ScaleGrid::kRows, .is_gated = true}, {f32({4, 5}), f32({5})});
  c.bad("a gate without history", {.is_gated = true}, {f32({4, 5}), f32({1})});
  c.bad("codes", {}, {{.dtype = DType::kE4M3, .dims = {4, 4}}});
  c.bad("maxima of another grid", {.grid = ScaleGrid::kRows}, {f32({4, 5}), f32({5})});
  return c.cases;
}

template <>
OpCases cases_of<Quantize>() {
  CasesOf<Quantize> c;
  const auto add = [&](const std::string& name, const Quantize& op, int64_t rows, int64_t columns) {
    const TensorType amax =
        maxima(rows, columns, op.grid, op.layout == Quantize::Layout::kTransposed);
    auto& one = c.good(op.describe() + name, op, {f32({rows, columns}), amax});
    one.check_gradient = false;
    one.fill = {{}, {.scale = 0.3, .shift = 3.0}};
    one.float_stays = {1};
    if (op.takes_maxima())
      c.good(op.describe() + name + ", own maxima", op, {f32({rows, columns})}).check_gradient =
          false;
  };
  for (const auto& [rows, columns] : {std::pair{37, 150}, {192, 256}, {150, 200}}) {
    for (const DType format : {DType::kE4M3, DType::kE5M2}) {
      const Quantize op{.format = format,
                        .grid = ScaleGrid::kSegments,
                        .layout = Quantize::Layout::kBoth,
                        .power_of_two = rows == 150};
      c.good(fmt::format("{} of {}", op.describe(), rows), op, {f32({rows, columns})})
          .check_gradient = false;
    }
  }
  for (const ScaleGrid grid : kGrids) {
    for (const Quantize::Layout layout :
         {Quantize::Layout::kRows, Quantize::Layout::kTransposed, Quantize::Layout::kBoth}) {
      if (layout == Quantize::Layout::kBoth && grid != ScaleGrid::kTensor) continue;
      add(", odd", {.grid = grid, .layout = layout}, 37, 150);
      add(", whole words", {.grid = grid, .layout = layout, .power_of_two = true}, 192, 256);
    }
  }
  add("", {.format = DType::kE5M2, .layout = Quantize::Layout::kBoth}, 64, 80);
  add("", {.layout = Quantize::Layout::kBoth, .rounds_to = DType::kBF16}, 64, 80);
  add(", of bfloat16", {.grid = ScaleGrid::kBlocks, .rounds_to = DType::kBF16}, 130, 264);
  for (const int64_t columns : {3072, 4160})
    add(fmt::format(", rows of {}", columns), {.grid = ScaleGrid::kRows}, 11, columns);
  for (const auto& [rows, columns] : {std::pair{37, 150}, {11, 4160}, {700, 256}}) {
    const Quantize op{.grid = ScaleGrid::kRows, .has_amax = true};
    c.good(fmt::format("{} of {}", op.describe(), columns), op, {f32({rows, columns})})
        .check_gradient = false;
  }
  for (const Quantize::Layout layout : {Quantize::Layout::kRows, Quantize::Layout::kTransposed}) {
    for (const bool rounds_up : {false, true}) {
      const Quantize op{.grid = ScaleGrid::kMx, .layout = layout, .rounds_up = rounds_up};
      c.good(op.describe() + ", odd", op, {f32({3, 47, 150})}).check_gradient = false;
      c.good(op.describe() + ", whole words", op, {f32({192, 256})}).check_gradient = false;
    }
    const Quantize wide{.format = DType::kE5M2, .grid = ScaleGrid::kMx, .layout = layout};
    c.good(wide.describe(), wide, {f32({40, 72})}).check_gradient = false;
    const Quantize narrow{.grid = ScaleGrid::kMx, .layout = layout, .rounds_to = DType::kBF16};
    c.good(narrow.describe(), narrow, {f32({40, 72})}).check_gradient = false;
  }
  c.bad("maxima of 1x32", {.grid = ScaleGrid::kMx}, {f32({4, 32}), f32({1, 1, 512})});
  for (const Quantize::Layout layout :
       {Quantize::Layout::kRows, Quantize::Layout::kTransposed, Quantize::Layout::kBoth}) {
    for (const bool has_amax : {false, true}) {
      for (const int64_t scale : {0, 64}) {
        const Quantize op{.format = has_amax ? DType::kE5M2 : DType::kE4M3,
                          .layout = layout,
                          .is_delayed = true,
                          .has_amax = has_amax};
        for (const int64_t columns : {150, 256}) {
          OpCase& one = c.good(fmt::format("{} {} of {}", op.describe(), scale, columns), op,
                               {f32({137, columns}), f32({1}), f32({5})});
          one.check_gradient = false;
          one.fill = {{}, {.values = {3}}, {.values = {scale, 7}}};
          one.float_stays = {1, 2};
        }
      }
    }
  }
  c.bad("delayed without a row", {.is_delayed = true}, {f32({4, 4}), f32({1})});
  c.bad("maxima of columns under given ones", {.grid = ScaleGrid::kRows, .has_amax = true},
        {f32({4, 4}), f32({4})});
  c.bad("a maximum without a row", {.has_amax = true}, {f32({4, 4}), f32({1})});
  c.bad("delayed scales of rows", {.grid = ScaleGrid::kRows, .is_delayed = true},
        {f32({4, 4}), f32({4}), f32({5})});
  c.bad("no maxima of a whole tensor", {}, {f32({4, 4})});
  c.bad("no format", {.format = DType::kBF16}, {f32({4, 4}), f32({1})});
  c.bad("rows both ways", {.grid = ScaleGrid::kRows, .layout = Quantize::Layout::kBoth},
        {f32({4, 4}), f32({4})});
  c.bad("segments both ways under given maxima",
        {.grid = ScaleGrid::kSegments, .layout = Quantize::Layout::kBoth},
        {f32({4, 128}), f32({1, 4})});
  c.bad("maxima of another grid", {}, {f32({4, 4}), f32({4})});
  return c.cases;
}

}  // namespace tokamak
