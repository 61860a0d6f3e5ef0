#include "tokamak/checkpoint/manifest.h"

#include "fuzz/fuzz.h"

// Inputs are sealed first, or no mutation would get past the seal. What is accepted must be written
// and read again to the same text.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tokamak::parse_manifest;
  tokamak::fuzz_text(data, size,
                     [](std::string_view text) { tokamak::parse_shard_summary(text, "fuzz"); });
  return tokamak::fuzz_text(data, size, [](std::string_view text) {
    const std::string first =
        tokamak::to_text(parse_manifest(tokamak::sealed(std::string(text)), "fuzz"));
    TOK_CHECK(tokamak::to_text(parse_manifest(first, "fuzz again")) == first);
  });
}
