#include "tokamak/hub/s3_access.h"
#include "tokamak/hub/s3_xml.h"

#include "fuzz/fuzz.h"

// No key that a store lists may reach a terminal as an order.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return tokamak::fuzz_text(data, size, [](std::string_view text) {
    tokamak::parse_aws_profiles(text);
    for (const auto& object : tokamak::parse_s3_list(text, "fuzz").objects)
      TOK_CHECK(object.key.find('\x1b') == std::string::npos && object.size >= 0);
  });
}
