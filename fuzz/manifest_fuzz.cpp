#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <unistd.h>

#include "tokamak/checkpoint/checkpoint_reader.h"
#include "tokamak/checkpoint/manifest.h"

#include "fuzz/fuzz.h"

namespace tokamak {
namespace {

// Shards of zeros: their hashes are wrong, which a reader must say before it uses a byte.
void read_as_checkpoint(const std::string& text, const Manifest& manifest) {
  constexpr int64_t kMostBytes = int64_t{1} << 20;
  const auto folder =
      std::filesystem::temp_directory_path() / fmt::format("tokamak-manifest-fuzz-{}", getpid());
  std::filesystem::create_directories(folder);
  std::ofstream(folder / kManifestFile, std::ios::binary) << text;
  for (const ShardSummary& shard : manifest.shards) {
    if (shard.file_bytes > kMostBytes || shard.file == kManifestFile) return;
    std::ofstream(folder / shard.file, std::ios::binary) << std::string(shard.file_bytes, '\0');
  }
  try {
    const CheckpointReader reader(folder);
    for (const auto& [name, type] : manifest.tensors) {
      if (type.bytes() > kMostBytes) continue;
      std::vector<std::byte> bytes(static_cast<size_t>(type.bytes()));
      reader.read(name, whole_slice(type.dims), bytes);
    }
    reader.verify();
  } catch (const std::runtime_error&) {  // NOLINT(bugprone-empty-catch): Damaged is a good answer
  }
}

}  // namespace
}  // namespace tokamak

// Inputs are sealed first, or no mutation would get past the seal. What is accepted must be written
// and read again to the same text.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tokamak::parse_manifest;
  tokamak::fuzz_text(data, size,
                     [](std::string_view text) { tokamak::parse_shard_summary(text, "fuzz"); });
  return tokamak::fuzz_text(data, size, [](std::string_view text) {
    const std::string sealed = tokamak::sealed(std::string(text));
    const tokamak::Manifest manifest = parse_manifest(sealed, "fuzz");
    const std::string first = tokamak::to_text(manifest);
    TOK_CHECK(tokamak::to_text(parse_manifest(first, "fuzz again")) == first);
    tokamak::read_as_checkpoint(sealed, manifest);
  });
}
