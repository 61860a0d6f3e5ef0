#include "tokamak/price/machine/machine.h"

#include "fuzz/fuzz.h"

// A machine that was accepted can be printed, and a file's text is also a poor --set.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tokamak::fuzz_text(data, size, [](std::string_view text) {
    static_cast<void>(tokamak::price::parse_machine(text, "fuzz").describe());
  });
  static const tokamak::price::Machine kBase = tokamak::price::load_machine("h100");
  return tokamak::fuzz_text(data, size, [](std::string_view text) {
    tokamak::price::Machine machine = kBase;
    tokamak::price::set_number(machine, text);
  });
}
