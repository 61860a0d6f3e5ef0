#include "tokamak/hub/model_hub.h"

#include "fuzz/fuzz.h"

// No name that a hub gives may leave the folder or reach a terminal as an order.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return tokamak::fuzz_text(data, size, [](std::string_view text) {
    tokamak::next_page(text);
    for (const auto& file : tokamak::parse_hub_files(text, "owner/name", "fuzz")) {
      TOK_CHECK(file.path.find('\x1b') == std::string::npos && file.path[0] != '/' &&
                file.path.find("../") == std::string::npos && file.size >= 0);
    }
  });
}
