#include "tokamak/tokenizer/byte_level.h"

#include <array>

#include "tokamak/tokenizer/unicode.h"

namespace tokamak {
namespace {

constexpr bool stands_for_itself(uint32_t byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Alphabet {
  std::array<uint16_t, 256> char_of{};
  std::array<int16_t, 512> byte_of{};

  constexpr Alphabet() {
    byte_of.fill(-1);
    uint32_t next = 256;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const uint32_t code = stands_for_itself(byte) ? byte : next++;
      char_of[byte] = static_cast<uint16_t>(code);
      byte_of[code] = static_cast<int16_t>(byte);
    }
  }
};

constexpr Alphabet kAlphabet;

}  // namespace

uint32_t byte_level_char(uint8_t byte) {
  return kAlphabet.char_of[byte];
}

bool from_byte_level(std::string_view token, std::string& bytes) {
  bytes.clear();
  const char* end = token.data() + token.size();
  for (const char* p = token.data(); p < end;) {
    const CodePoint code = decode_utf8(p, end);
    if (code.value >= kAlphabet.byte_of.size() || kAlphabet.byte_of[code.value] < 0) return false;
    bytes.push_back(static_cast<char>(kAlphabet.byte_of[code.value]));
    p += code.bytes;
  }
  return true;
}

std::string to_byte_level(std::string_view bytes) {
  std::string token;
  for (const char c : bytes) append_utf8(byte_level_char(static_cast<uint8_t>(c)), token);
  return token;
}

}  // namespace tokamak
