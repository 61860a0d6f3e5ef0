#include "tokamak/checkpoint/formats/hf_weights.h"

#include "fuzz/fuzz.h"

// A file that an index names must stay in its folder.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return tokamak::fuzz_text(data, size, [](std::string_view text) {
    for (const auto& [tensor, file] : tokamak::parse_weight_index(text, "fuzz")) {
      TOK_CHECK(!file.empty() && file.find('/') == std::string::npos && file != "..");
    }
  });
}
