// Matmuls of so few tokens that reading the weight is all that counts.
#pragma once

#include <cstdint>
#include <string_view>

namespace tokamak {

/// The GPU's variant of Linear for 1 to kMostFewRows tokens.
inline constexpr std::string_view kFewRowsVariant = "few rows";
inline constexpr int64_t kMostFewRows = 4;

/// The outputs that are computed together.
inline constexpr int64_t kFewestOutputs = 4;

}  // namespace tokamak
