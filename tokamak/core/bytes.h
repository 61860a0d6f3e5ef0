// Sizes in units that people read.
#pragma once

#include <cstdint>

namespace tokamak {

inline constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

constexpr double gib(int64_t bytes) {
  return static_cast<double>(bytes) / kGiB;
}

}  // namespace tokamak
