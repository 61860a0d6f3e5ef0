// Which matmuls of a run are in 8-bit floats, from its configuration.
#pragma once

#include <optional>

#include "tokamak/config/config.h"
#include "tokamak/run/planned_run.h"

namespace tokamak {

/// Of a configuration whose model.converters name quantize.linear.float8; nothing else. Throws
/// Error naming the key where keys exclude each other.
std::optional<Float8Options> float8_of(const Config& config);

/// Why auto_filter_small_kn leaves a matmul of N out and K in features alone, or "". Source:
/// torchao 0.17, float8/float8_linear_utils.py.
std::string why_too_small(const Float8Recipe& recipe, int64_t n, int64_t k);

}  // namespace tokamak
