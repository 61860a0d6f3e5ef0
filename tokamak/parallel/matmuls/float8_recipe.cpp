#include "tokamak/parallel/matmuls/float8_recipe.h"

#include <algorithm>
#include <array>

namespace tokamak {

std::optional<Float8Recipe> find_float8_recipe(std::string_view name) {
  using enum ScaleGrid;
  static constexpr std::array kRecipes{
      Float8Recipe{.name = "tensorwise"},
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
  };
  const auto* const found = std::find_if(kRecipes.begin(), kRecipes.end(),
                                         [&](const Float8Recipe& r) { return r.name == name; });
  return found == kRecipes.end() ? std::nullopt : std::optional(*found);
}

}  // namespace tokamak
