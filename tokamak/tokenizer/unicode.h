// The part of Unicode that splitting words needs: UTF-8 decoding and four character classes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tokamak {

/// Bits of unicode_flags(): general categories L and N, White_Space, and \w.
inline constexpr uint8_t kLetter = 1;
inline constexpr uint8_t kNumber = 2;
inline constexpr uint8_t kSpace = 4;
inline constexpr uint8_t kWordChar = 8;

/// decode_utf8() returns it for a byte that begins no valid sequence; it has no flags.
inline constexpr uint32_t kInvalidCodePoint = 0x110000;

struct CodePoint {
  uint32_t value;
  uint32_t bytes;
};

/// Returns the character at `p`, or {kInvalidCodePoint, 1}. REQUIRES: p < end.
inline CodePoint decode_utf8(const char* p, const char* end) {
  const auto byte = [p](int i) { return static_cast<uint32_t>(static_cast<uint8_t>(p[i])); };
  const auto tail = [&](int i) { return (byte(i) & 0xC0U) == 0x80U; };
  const uint32_t first = byte(0);
  if (first < 0x80U) return {first, 1};
  if (first >= 0xC2U && first < 0xE0U && end - p >= 2 && tail(1)) {
    return {(first & 0x1FU) << 6U | (byte(1) & 0x3FU), 2};
  }
  if (first >= 0xE0U && first < 0xF0U && end - p >= 3 && tail(1) && tail(2)) {
    const uint32_t code = (first & 0x0FU) << 12U | (byte(1) & 0x3FU) << 6U | (byte(2) & 0x3FU);
    if (code >= 0x800U && (code < 0xD800U || code > 0xDFFFU)) return {code, 3};
  }
  if (first >= 0xF0U && first < 0xF5U && end - p >= 4 && tail(1) && tail(2) && tail(3)) {
    const uint32_t code = (first & 0x07U) << 18U | (byte(1) & 0x3FU) << 12U |
                          (byte(2) & 0x3FU) << 6U | (byte(3) & 0x3FU);
    if (code >= 0x10000U && code < 0x110000U) return {code, 4};
  }
  return {kInvalidCodePoint, 1};
}

/// Appends `code` as UTF-8. REQUIRES: `code` is a valid code point.
void append_utf8(uint32_t code, std::string& out);

/// Returns kInvalidCodePoint + 1 flags by code point, which are built on first use.
const uint8_t* unicode_flags();

}  // namespace tokamak
