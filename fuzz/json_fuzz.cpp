#include "tokamak/core/json.h"

#include "fuzz/fuzz.h"

// What is parsed must be written and parsed again to the same value.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return tokamak::fuzz_text(data, size, [](std::string_view text) {
    const tokamak::Json value = tokamak::parse_json(text, "fuzz");
    TOK_CHECK(tokamak::parse_json(value.dump(), "fuzz again") == value);
    tokamak::parse_ordered_json(text, "fuzz ordered");
  });
}
