#include "tokamak/core/with_commas.h"

#include <algorithm>

namespace tokamak {

std::string with_commas(std::string digits) {
  const size_t first = digits.find_first_of("0123456789");
  if (first == std::string::npos) return digits;
  const size_t point = std::min(digits.find('.'), digits.size());
  for (size_t at = point; at > first + 3;) {
    at -= 3;
    digits.insert(at, 1, ',');
  }
  return digits;
}

std::string with_commas(int64_t number) {
  return with_commas(std::to_string(number));
}

}  // namespace tokamak
