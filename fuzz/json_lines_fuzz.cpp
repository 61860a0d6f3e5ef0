#include <string>

#include "tokamak/data/json_text.h"

#include "fuzz/fuzz.h"

// The end of a value does not depend on the parts in which its text comes.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tokamak;  // NOLINT(google-build-using-namespace)
  return fuzz_text(data, size, [](std::string_view text) {
    JsonEnd whole;
    JsonEnd parts;
    size_t at = 0;
    while (at < text.size() && !parts.found()) at += parts.add(text.substr(at, 1));
    TOK_CHECK(whole.add(text) == at && whole.found() == parts.found());
    std::string padded(text.substr(0, at));
    padded.reserve(padded.size() + JsonTextParser::kPadding);
    JsonTextParser parser("text");
    parser.parse(padded);
    parser.text("fuzz", true);
  });
}
