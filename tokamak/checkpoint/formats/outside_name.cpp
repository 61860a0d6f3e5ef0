#include "tokamak/checkpoint/formats/outside_name.h"

#include <fmt/format.h>

namespace tokamak {

std::string shown(std::string_view name) {
  constexpr size_t kLongest = 120;
  std::string text = "\"";
  unsigned char before = 0;
  for (const char c : name.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_c1 = before == 0xC2 && byte >= 0x80 && byte < 0xA0;  // U+0080 to U+009F
    if (byte < 0x20 || byte == 0x7F || is_c1) {
      text += fmt::format("\\x{:02x}", byte);
    } else {
      text += c;
    }
    before = byte;
  }
  return text + (name.size() > kLongest ? "...\"" : "\"");
}

bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

}  // namespace tokamak
