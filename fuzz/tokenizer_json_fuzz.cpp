#include "tokamak/tokenizer/tokenizer.h"

#include "fuzz/fuzz.h"

// A vocabulary that loads must encode and decode a text without a bug.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return tokamak::fuzz_text(data, size, [](std::string_view text) {
    const auto tokenizer = tokamak::parse_tokenizer_json(text, "fuzz");
    std::vector<int32_t> ids;
    tokenizer->encode("Hello, world 123\n  don't \xF0\x9F\x99\x82 <|end|>", ids);
    tokenizer->decode(ids);
  });
}
