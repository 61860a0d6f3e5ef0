#include "tokamak/checkpoint/formats/safetensors.h"

#include "fuzz/fuzz.h"

// Whatever is accepted must lie inside the file.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return tokamak::fuzz_bytes(data, size, [](std::span<const std::byte> bytes) {
    const auto file_bytes = static_cast<int64_t>(bytes.size());
    const auto header = tokamak::parse_safetensors_header(bytes, file_bytes, "fuzz");
    for (const auto& entry : header.entries) {
      TOK_CHECK(0 <= entry.begin && entry.begin <= entry.end && entry.end <= file_bytes);
    }
  });
}
