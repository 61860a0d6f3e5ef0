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

/// Returns one `unit` in SI units. Throws Error in one line that begins with `who` if the dimension
/// has no such unit; only plain numbers have the empty unit.
double si_per_unit(Dimension dimension, std::string_view unit, std::string_view who);

/// Returns text such as "3.35 TB/s", which reads back to the same ten digits.
std::string text_of(double in_si, Dimension dimension);

}  // namespace tokamak::price
