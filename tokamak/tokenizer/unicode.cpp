#include "tokamak/tokenizer/unicode.h"

#include <algorithm>
#include <vector>

namespace tokamak {
namespace {

struct UnicodeRange {
  uint32_t first;
  uint32_t last;
  uint8_t flags;
};

constexpr UnicodeRange kUnicodeRanges[] = {
#include "tokamak/tokenizer/unicode_ranges.def"
};

}  // namespace

void append_utf8(uint32_t code, std::string& out) {
  const auto put = [&out](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80U) return put(code);
  if (code < 0x800U) {
    put(0xC0U | code >> 6U);
  } else if (code < 0x10000U) {
    put(0xE0U | code >> 12U);
    put(0x80U | (code >> 6U & 0x3FU));
  } else {
    put(0xF0U | code >> 18U);
    put(0x80U | (code >> 12U & 0x3FU));
    put(0x80U | (code >> 6U & 0x3FU));
  }
  put(0x80U | (code & 0x3FU));
}

const uint8_t* unicode_flags() {
  static const std::vector<uint8_t> kFlags = [] {
    std::vector<uint8_t> flags(kInvalidCodePoint + 1, 0);
    for (const auto& range : kUnicodeRanges) {
      std::fill(flags.begin() + range.first, flags.begin() + range.last + 1, range.flags);
    }
    return flags;
  }();
  return kFlags.data();
}

}  // namespace tokamak
