// The choice that a LowPrecision holds: a recipe, and the layers to which it applies.
#pragma once

#include <optional>
#include <string>

#include "tokamak/parallel/float8/float8_recipe.h"
#include "tokamak/parallel/float8/mark_float8.h"

namespace tokamak {

struct Config;

/// Matmuls of blocks and of the head in 8-bit floats.
struct LowPrecisionChoice {
  Float8Recipe recipe;
  Float8Layers layers;
};

/// Returns the choice of a run whose model.converters name quantize.linear.float8 or
/// quantize.linear.mx, or nothing. Throws Error that names the key if keys exclude each other.
std::optional<LowPrecisionChoice> float8_of(const Config& config);

/// Returns why a target cannot multiply the quantized values of a recipe, and what to do, or "".
std::string why_no_float8(const Float8Recipe& recipe, const Target& target);

/// Returns why auto_filter_small_kn leaves out a matmul of N output and K input features, or "".
/// Source: torchao 0.17, float8/float8_linear_utils.py.
std::string why_too_small(const Float8Recipe& recipe, int64_t n, int64_t k);

}  // namespace tokamak
