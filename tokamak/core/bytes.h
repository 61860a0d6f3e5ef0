// Sizes in units that people read.
#pragma once

namespace tokamak {

inline constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

}  // namespace tokamak
