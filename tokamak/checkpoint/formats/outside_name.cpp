#include "tokamak/checkpoint/formats/outside_name.h"

#include <fmt/format.h>

#include "tokamak/core/names.h"

namespace tokamak {

std::string shown(std::string_view name) {
  constexpr size_t kLongest = 120;
  return fmt::format("\"{}{}\"", without_controls(name.substr(0, kLongest)),
                     name.size() > kLongest ? "..." : "");
}

bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

}  // namespace tokamak
