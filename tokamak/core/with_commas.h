// Writes numbers for people: 6,163,712.
#pragma once

#include <cstdint>
#include <string>

namespace tokamak {

/// Returns a decimal number, which may have a sign and a fraction, with commas between thousands.
std::string with_commas(std::string digits);

std::string with_commas(int64_t number);

}  // namespace tokamak
