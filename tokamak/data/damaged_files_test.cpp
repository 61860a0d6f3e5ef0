// Every cut and every flipped bit of small files: all documents, or an error that names the file.
#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tokamak/data/test_files.h"
#include "tokamak/data/test_texts.h"
#include "tokamak/data/token_files.h"

namespace tokamak {
namespace {

template <class T>
using Read = std::function<T(const std::string& path)>;

// Returns the result of `read`, or nothing if `read` throws an Error that names the file.
template <class T>
std::optional<T> read_or_refuse(const Read<T>& read, const std::string& path) {
  try {
    return read(path);
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find(path.substr(0, path.rfind('.'))), std::string::npos) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    return std::nullopt;
  }
}

// Cuts that leave a sound file are those at `ends`.
template <class T>
void expect_cuts_seen(const TestFolder& folder, const std::string& name, const std::string& whole,
                      const Read<T>& read, const std::vector<size_t>& ends) {
  for (size_t cut = 0; cut < whole.size(); ++cut) {
    const auto got = read_or_refuse(read, folder.write(name, whole.substr(0, cut)));
    const bool is_sound = std::find(ends.begin(), ends.end(), cut) != ends.end();
    EXPECT_EQ(got.has_value(), is_sound) << name << " cut at " << cut;
  }
}

template <class T>
void expect_flips_seen(const TestFolder& folder, const std::string& name, const std::string& whole,
                       const Read<T>& read, size_t first = 0, size_t last = SIZE_MAX) {
  const T want = read(folder.write(name, whole));
  int refused = 0;
  for (size_t bit = first * 8; bit < std::min(last, whole.size()) * 8; ++bit) {
    std::string damaged = whole;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    const auto got = read_or_refuse(read, folder.write(name, damaged));
    EXPECT_TRUE(!got || *got == want) << name << " bit " << bit % 8 << " of byte " << bit / 8;
    refused += got ? 0 : 1;
  }
  EXPECT_GT(refused, 0);
}

std::string lines(int first, int count) {
  std::string text;
  for (int i = first; i < first + count; ++i)
    text += "{\"text\": \"document " + std::to_string(i) + "\"}\n";
  return text;
}

using Texts = std::vector<std::string>;

Texts read_json(const std::string& path) {
  return read_all("c4", path);
}

Texts read_plain(const std::string& path) {
  return read_all("text", path);
}

TEST(DamagedFiles, GzipOfSeveralMembers) {
  const TestFolder folder;
  const std::string one = gzip(lines(0, 1));
  const std::string two = one + gzip(lines(1, 2));
  const std::string tape = two + std::string(5, '\0') + gzip(lines(3, 1)) + std::string(9, '\0');
  EXPECT_EQ(read_json(folder.write("a.jsonl.gz", tape)).size(), 4U);
  std::vector<size_t> ends;
  for (size_t i = 0; i <= 5; ++i) ends.push_back(two.size() + i);
  for (size_t i = tape.size() - 9; i < tape.size(); ++i) ends.push_back(i);
  ends.push_back(one.size());
  expect_cuts_seen<Texts>(folder, "a.jsonl.gz", tape, read_json, ends);
  expect_flips_seen<Texts>(folder, "a.jsonl.gz", tape, read_json);
  expect_cuts_seen<Texts>(folder, "d/a.txt.gz", gzip("a text"), read_plain, {});
  expect_flips_seen<Texts>(folder, "d/a.txt.gz", one, read_plain);
  EXPECT_ERROR(read_json(folder.write("a.jsonl.gz", two + "xyz")), "broken gzip data: incorrect");
  EXPECT_ERROR(read_json(folder.write("a.jsonl.gz", gzip(""))), "a.jsonl.gz: wanted JSON lines");
}

TEST(DamagedFiles, ZstdOfSeveralFrames) {
  const TestFolder folder;
  const std::string skippable = std::string("\x53\x2A\x4D\x18\x03\0\0\0abc", 11);
  const std::string first = skippable + zstd(lines(0, 2), true);
  const std::string whole = first + skippable + zstd(lines(2, 3), true);
  EXPECT_EQ(read_json(folder.write("a.jsonl.zst", whole)).size(), 5U);
  expect_cuts_seen<Texts>(folder, "a.jsonl.zst", whole, read_json,
                          {first.size(), first.size() + skippable.size()});
  // The size of what is skipped is covered by no checksum.
  expect_flips_seen<Texts>(folder, "a.jsonl.zst", whole, read_json, 0, first.size());
  const std::string plain = zstd(lines(0, 2)) + zstd(lines(2, 1));
  expect_cuts_seen<Texts>(folder, "b.jsonl.zst", plain, read_json, {zstd(lines(0, 2)).size()});
  EXPECT_ERROR(read_json(folder.write("a.jsonl.zst", whole + "x")), "a.jsonl.zst");
  EXPECT_ERROR(read_json(folder.write("a.jsonl.zst", skippable)), "wanted JSON lines, got no text");
}

TEST(DamagedFiles, JsonThatIsOneArray) {
  const TestFolder folder;
  const std::string whole = R"([{"text":"a","n":1},)"
                            "\n"
                            R"({"text":"b"}])";
  EXPECT_EQ(read_json(folder.write("a.json", whole)), (Texts{"a", "b"}));
  expect_cuts_seen<Texts>(folder, "a.json", whole, read_json, {});
}

using Tokens = std::vector<int32_t>;

Tokens read_tokens(const std::string& path) {
  const auto source = open_token_files(path);
  if (!source->remarks().empty()) throw Error(source->remarks()[0]);
  Tokens ids(static_cast<size_t>(*source->size()));
  source->read(0, ids);
  return ids;
}

TEST(DamagedFiles, LlmcTokens) {
  const TestFolder folder;
  std::vector<int32_t> header(256, 0);
  header[0] = 20240520;
  header[1] = 1;
  header[2] = 3;
  const std::string whole = bytes_of(header) + bytes_of<uint16_t>({1, 2, 3});
  expect_cuts_seen<Tokens>(folder, "a.bin", whole, read_tokens, {});
  // No checksum covers the ids.
  expect_flips_seen<Tokens>(folder, "a.bin", whole, read_tokens, 0, 1024);
  EXPECT_ERROR(read_tokens(folder.write("a.bin", whole + "x")), "a.bin: declares 3 tokens");
}

TEST(DamagedFiles, BareTokens) {
  const TestFolder folder;
  const std::string whole = bytes_of<uint32_t>({1, 2, 3});
  expect_cuts_seen<Tokens>(folder, "a.u32", whole, read_tokens, {4, 8});
}

std::string megatron_index(const std::vector<int32_t>& lengths,
                           const std::vector<int64_t>& pointers,
                           const std::vector<int64_t>& documents) {
  return std::string("MMIDIDX\0\0", 9) + bytes_of<uint64_t>({1}) + '\x08' +
         bytes_of<uint64_t>({lengths.size(), documents.size()}) + bytes_of(lengths) +
         bytes_of(pointers) + bytes_of(documents);
}

TEST(DamagedFiles, MegatronTokens) {
  const TestFolder folder;
  const std::string tokens = bytes_of<uint16_t>({1, 2, 3, 4, 5, 6});
  const std::string index = megatron_index({3, 2, 1}, {0, 6, 10}, {0, 2, 3});
  const Read<Tokens> read = [&](const std::string&) { return read_tokens(folder / "a.bin"); };
  folder.write("a.idx", index);
  expect_cuts_seen<Tokens>(folder, "a.bin", tokens, read, {});
  folder.write("a.bin", tokens);
  expect_cuts_seen<Tokens>(folder, "a.idx", index, read, {});
  expect_flips_seen<Tokens>(folder, "a.idx", index, read);
}

}  // namespace
}  // namespace tokamak
