// The byte-level alphabet of GPT-2 writes each byte as one printable character, so that tokens are
// text in JSON.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tokamak {

/// Returns the code point that stands for `byte`.
uint32_t byte_level_char(uint8_t byte);

/// Replaces `bytes` by the bytes that the characters of `token` stand for. If a character stands
/// for none, returns false and leaves `bytes` undefined.
bool from_byte_level(std::string_view token, std::string& bytes);

/// The inverse of from_byte_level().
std::string to_byte_level(std::string_view bytes);

}  // namespace tokamak
