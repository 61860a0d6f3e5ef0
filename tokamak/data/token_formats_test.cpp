#include "tokamak/data/token_formats.h"

#include <cstring>

#include "tokamak/data/test_files.h"

namespace tokamak {
namespace {

std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::string megatron(uint8_t type, const std::vector<int32_t>& lengths,
                     const std::vector<int64_t>& pointers, const std::vector<int64_t>& documents) {
  return std::string("MMIDIDX\0\0", 9) + bytes_of<uint64_t>({1}) + static_cast<char>(type) +
         bytes_of<uint64_t>({lengths.size(), documents.size()}) + bytes_of(lengths) +
         bytes_of(pointers) + bytes_of(documents);
}

std::string llmc(int32_t magic, int32_t version, int32_t count, const std::string& body) {
  std::vector<int32_t> header(256, 0);
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  return bytes_of(header) + body;
}

TEST(MegatronIndex, JoinsNeighbours) {
  const std::string bytes = megatron(8, {3, 2, 4}, {0, 6, 20}, {0, 2, 3});
  const MegatronIndex index = parse_megatron_index(as_bytes(bytes), "x.idx");
  EXPECT_EQ(index.num_tokens, 9);
  EXPECT_EQ(index.num_documents, 2);
  EXPECT_EQ(index.bytes_needed, 28);
  ASSERT_EQ(index.runs.size(), 2U);
  EXPECT_EQ(index.runs[0].num_tokens, 5);
  EXPECT_EQ(index.runs[1].first_byte, 20);
}

TEST(MegatronIndex, RefusesLies) {
  std::string bytes = megatron(8, {3}, {0}, {0, 1});
  const auto parse = [&] { parse_megatron_index(as_bytes(bytes), "x.idx"); };
  EXPECT_ERROR(parse_megatron_index(as_bytes("MMID"), "x.idx"), "x.idx: wanted a Megatron index");
  const uint64_t huge = uint64_t{1} << 61U;
  std::memcpy(bytes.data() + 18, &huge, 8);
  EXPECT_ERROR(parse(), "more than its");
  bytes = megatron(8, {3}, {-2}, {0, 1});
  EXPECT_ERROR(parse(), "sequence 0 has 3 tokens at byte -2");
  bytes = megatron(8, {-3}, {0}, {0, 1});
  EXPECT_ERROR(parse(), "sequence 0 has -3 tokens");
  bytes = megatron(7, {3}, {0}, {0, 1});
  EXPECT_ERROR(parse(), "got code 7");
  bytes = megatron(8, {3}, {0}, {0, 9});
  EXPECT_ERROR(parse(), "document 1 begins at sequence 9");
}

TEST(LlmcHeader, ReadsBothKinds) {
  const std::string gpt2 = llmc(20240520, 1, 3, bytes_of<uint16_t>({1, 2, 3}));
  EXPECT_EQ(parse_llmc_header(as_bytes(gpt2), "a.bin").num_tokens, 3);
  const std::string llama = llmc(20240801, 7, 2, bytes_of<uint32_t>({1, 128000}));
  EXPECT_EQ(parse_llmc_header(as_bytes(llama), "a.bin").type, TokenType::kU32);
}

TEST(LlmcHeader, RefusesLies) {
  const std::string cut = llmc(20240520, 1, 4, bytes_of<uint16_t>({1, 2, 3}));
  EXPECT_ERROR(parse_llmc_header(as_bytes(cut), "a.bin"), "a.bin: declares 4 tokens");
  const std::string less = llmc(20240520, 1, -1, "");
  EXPECT_ERROR(parse_llmc_header(as_bytes(less), "a.bin"), "declares -1 tokens");
  const std::string version = llmc(20240801, 1, 0, "");
  EXPECT_ERROR(parse_llmc_header(as_bytes(version), "a.bin"), "wanted version 7");
  EXPECT_ERROR(parse_llmc_header(as_bytes("abc"), "a.bin"), "header of 1024 bytes");
}

TEST(CopyTokens, MarksIdsBeyondInt32) {
  const std::string bytes = bytes_of<uint32_t>({7, 0xFFFFFFFFU});
  std::vector<int32_t> ids(2);
  copy_tokens(TokenType::kU32, as_bytes(bytes), 0, ids);
  EXPECT_EQ(ids, (std::vector<int32_t>{7, -1}));
  EXPECT_EQ(token_at(TokenType::kU32, as_bytes(bytes), 1), 4294967295);
}

}  // namespace
}  // namespace tokamak
