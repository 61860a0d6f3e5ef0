#include "tokamak/checkpoint/formats/outside_name.h"

#include <fmt/format.h>

namespace tokamak {

std::string shown(std::string_view name) {
  constexpr size_t kLongest = 120;
  std::string text = "\"";
  for (const char c : name.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) {
      text += fmt::format("\\x{:02x}", byte);
    } else {
      text += c;
    }
  }
  return text + (name.size() > kLongest ? "...\"" : "\"");
}

bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

}  // namespace tokamak
