// Units of the numbers in machine files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tokamak::price {

enum class Dimension : uint8_t {
  kNone,
  kFlopsPerSecond,
  kBytesPerSecond,
  kBytes,
  kSeconds,
  kSecondsPerRootMib,
  kPerSecond
};

/// What one `unit` is in SI units. Throws Error in one line that begins with `who` if the dimension
/// has no such unit; the empty unit is that of plain numbers alone.
double si_per_unit(Dimension dimension, std::string_view unit, std::string_view who);

/// "3.35 TB/s": reads back to the same ten digits.
std::string text_of(double in_si, Dimension dimension);

}  // namespace tokamak::price
