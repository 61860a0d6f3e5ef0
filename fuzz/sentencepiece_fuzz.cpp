#include "tokamak/tokenizer/tokenizer.h"

#include "fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return tokamak::fuzz_text(data, size, [](std::string_view text) {
    const auto tokenizer = tokamak::parse_sentencepiece(text, "fuzz");
    std::vector<int32_t> ids;
    tokenizer->encode("Hello, w\xC3\xB6rld 123\n  don't \xFF", ids);
    tokenizer->decode(ids);
  });
}
