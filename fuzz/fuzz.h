// The one rule for parsers of outside bytes: they return, or throw Error. Anything else (a Bug, a
// bad_alloc, a sanitizer report, a time-out) is a finding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "tokamak/core/error.h"

namespace tokamak {

/// Calls `parse` with the input as text.
template <class Parse>
int fuzz_text(const uint8_t* data, size_t size, Parse parse) {
  try {
    parse(std::string_view(reinterpret_cast<const char*>(data), size));
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): a refusal is a good answer
  }
  return 0;
}

/// Calls `parse` with the input as bytes.
template <class Parse>
int fuzz_bytes(const uint8_t* data, size_t size, Parse parse) {
  return fuzz_text(data, size,
                   [&](std::string_view text) { parse(std::as_bytes(std::span(text))); });
}

}  // namespace tokamak
