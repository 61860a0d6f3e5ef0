#include "tokamak/data/token_formats.h"

#include "fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tokamak;  // NOLINT(google-build-using-namespace)
  fuzz_bytes(data, size, [](std::span<const std::byte> bytes) {
    const LlmcHeader header = parse_llmc_header(bytes, "fuzz");
    const auto room = static_cast<int64_t>(bytes.size()) - LlmcHeader::kBytes;
    TOK_CHECK(0 <= header.num_tokens && header.num_tokens * size_of(header.type) <= room);
  });
  return fuzz_bytes(data, size, [](std::span<const std::byte> bytes) {
    const MegatronIndex index = parse_megatron_index(bytes, "fuzz");
    int64_t tokens = 0;
    for (const TokenRun& run : index.runs) {
      TOK_CHECK(run.first_byte >= 0 && run.num_tokens >= 0);
      TOK_CHECK(run.num_tokens <= (index.bytes_needed - run.first_byte) / size_of(index.type));
      tokens += run.num_tokens;
    }
    TOK_CHECK(tokens == index.num_tokens);
  });
}
