#include "tokamak/parallel/float8/float8_recipe.h"

#include <algorithm>
#include <array>

namespace tokamak {

namespace {

// Sources: torchao 0.17, prototype/mx_formats/config.py; OCP Microscaling Formats 1.0.
constexpr Float8Recipe mx_recipe(std::string_view name, bool rounds_up, bool emulate = false) {
  using enum ScaleGrid;
  return {.name = name,
          .x_of_y = kMx,
          .w_of_y = kMx,
          .g_of_dx = kMx,
          .w_of_dx = kMx,
          .of_dw = kMx,
          .gradient = DType::kE4M3,
          .rounds_up = rounds_up,
          .fast_y = false,
          .emulate = emulate};
}

}  // namespace

std::optional<Float8Recipe> find_float8_recipe(std::string_view name) {
  using enum ScaleGrid;
  static constexpr std::array kRecipes{
      Float8Recipe{.name = "tensorwise"},
      Float8Recipe{.name = "delayed", .history_len = 1024},
      Float8Recipe{.name = "rowwise",
                   .x_of_y = kRows,
                   .w_of_y = kRows,
                   .g_of_dx = kRows,
                   .w_of_dx = kRows,
                   .of_dw = kRows,
                   .gradient = DType::kE4M3,
                   .power_of_two = true},
      Float8Recipe{.name = "rowwise_with_gw_hp",
                   .x_of_y = kRows,
                   .w_of_y = kRows,
                   .g_of_dx = kRows,
                   .gradient = DType::kE4M3,
                   .has_dw = false,
                   .power_of_two = true},
      Float8Recipe{.name = "blockwise",
                   .x_of_y = kSegments,
                   .w_of_y = kBlocks,
                   .g_of_dx = kSegments,
                   .w_of_dx = kBlocks,
                   .of_dw = kSegments,
                   .gradient = DType::kE4M3,
                   .fast_y = false},
      mx_recipe("mxfp8_cublas", false),
      mx_recipe("mxfp8_cublas_rceil", true),
      mx_recipe("mxfp8_rceil", true),
      mx_recipe("mxfp8_emulated", false, true),
  };
  const auto* const found = std::find_if(kRecipes.begin(), kRecipes.end(),
                                         [&](const Float8Recipe& r) { return r.name == name; });
  return found == kRecipes.end() ? std::nullopt : std::optional(*found);
}

}  // namespace tokamak
