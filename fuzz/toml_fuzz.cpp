#include "tokamak/config/load.h"

#include "fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return tokamak::fuzz_text(data, size,
                            [](std::string_view text) { tokamak::parse_toml_text(text, "fuzz"); });
}
