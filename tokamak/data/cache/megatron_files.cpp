#include "tokamak/data/cache/megatron_files.h"

#include <algorithm>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/data/token_formats.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

// Writes the tokens and returns the length of each document that has any.
std::vector<int32_t> write_tokens(const CacheFolder& cache, FileWriter& out) {
  std::vector<int32_t> lengths;
  CacheRecord before;
  int64_t begin = 0;
  const CacheFiles files = cache.open_files();
  for (const CacheRecord& record : cache.synced_records(0)) {
    const auto chunk = cache.sound_chunk(files, before, record);
    TOK_REQUIRE(chunk,
                "{}: tokens {} to {} do not have their hash: the token cache is damaged; delete "
                "its folder and run this again",
                cache.tokens_path().string(), before.tokens, record.tokens);
    out.write(chunk->tokens);
    for (const int64_t end : chunk->ends) {
      const int64_t length = end - begin;
      TOK_REQUIRE(length <= std::numeric_limits<int32_t>::max(),
                  "a document of {} tokens: wanted at most 2,147,483,647, which is the longest "
                  "sequence of a Megatron index; split the text",
                  length);
      if (length > 0) lengths.push_back(static_cast<int32_t>(length));
      begin = end;
    }
    before = record;
  }
  TOK_CHECK(before.complete && begin == before.tokens);
  return lengths;
}

template <class T, class Value>
void write_array(FileWriter& out, size_t count, Value&& value) {
  std::vector<T> some;
  for (size_t i = 0; i < count; ++i) {
    some.push_back(value(i));
    if (some.size() < 1 << 16 && i + 1 < count) continue;
    out.write(std::as_bytes(std::span(some)));
    some.clear();
  }
}

fs::path beside(const fs::path& prefix, const char* extension) {
  return prefix.string() + extension;
}

}  // namespace

MegatronCounts write_megatron(const CacheFolder& cache, const fs::path& prefix) {
  const fs::path bin = beside(prefix, ".bin.tmp");
  const fs::path idx = beside(prefix, ".idx.tmp");
  FileWriter tokens(bin);
  FileWriter index(idx);
  const std::vector<int32_t> lengths = write_tokens(cache, tokens);
  const auto count = std::ssize(lengths);
  index.write(megatron_header(cache.token_bytes() == 2 ? TokenType::kU16 : TokenType::kI32, count,
                              count + 1));
  write_array<int32_t>(index, lengths.size(), [&](size_t i) { return lengths[i]; });
  int64_t end = 0;
  write_array<int64_t>(index, lengths.size(), [&](size_t i) {
    const int64_t begin = end;
    end += lengths[i] * cache.token_bytes();
    return begin;
  });
  write_array<int64_t>(index, lengths.size() + 1, [](size_t i) { return static_cast<int64_t>(i); });
  tokens.sync_and_close();
  index.sync_and_close();
  // An older index does not belong to the new tokens.
  fs::remove(beside(prefix, ".idx"));
  rename_durably(bin, beside(prefix, ".bin"));
  rename_durably(idx, beside(prefix, ".idx"));
  return {.documents = count, .tokens = end / cache.token_bytes()};
}

}  // namespace tokamak
