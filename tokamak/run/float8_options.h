// Reads from a configuration which matmuls are computed in 8-bit floats.
#pragma once

#include <optional>

#include "tokamak/config/config.h"
#include "tokamak/run/planned_run.h"

namespace tokamak {

/// Returns the options of a run whose model.converters name quantize.linear.float8 or
/// quantize.linear.mx, or nothing. Throws Error that names the key if keys exclude each other.
std::optional<Float8Options> float8_of(const Config& config);

/// Returns why a target cannot multiply the quantized values of a run, and what to do, or "".
std::string why_no_float8(const std::optional<Float8Options>& float8, const Target& target);

/// Returns why auto_filter_small_kn leaves out a matmul of N output and K input features, or "".
/// Source: torchao 0.17, float8/float8_linear_utils.py.
std::string why_too_small(const Float8Recipe& recipe, int64_t n, int64_t k);

}  // namespace tokamak
