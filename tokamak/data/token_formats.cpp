#include "tokamak/data/token_formats.h"

#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "tokamak/core/error.h"

namespace tokamak {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are mapped as they are");

constexpr std::string_view kMegatronMagic("MMIDIDX\0\0", 9);
constexpr int64_t kMegatronHeaderBytes = 9 + 8 + 1 + 8 + 8;
constexpr int32_t kLlmcGpt2Magic = 20240520;
constexpr int32_t kLlmcLlama3Magic = 20240801;

template <class T>
T load(std::span<const std::byte> bytes, int64_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

template <class T>
void convert(const std::byte* in, std::span<int32_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, in + i * sizeof(T), sizeof(T));
    out[i] = std::in_range<int32_t>(value) && value >= 0 ? static_cast<int32_t>(value) : -1;
  }
}

TokenType megatron_type(uint8_t code, std::string_view name) {
  switch (code) {
    case 1:
      return TokenType::kU8;
    case 2:
      return TokenType::kI8;
    case 3:
      return TokenType::kI16;
    case 4:
      return TokenType::kI32;
    case 5:
      return TokenType::kI64;
    case 8:
      return TokenType::kU16;
    default:
      fail("{}: wanted a Megatron element type of token ids (1-5 or 8), got code {}", name, code);
  }
}

void check_documents(std::span<const std::byte> bytes, int64_t first_byte, int64_t count,
                     int64_t num_sequences, std::string_view name) {
  int64_t last = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto at = load<int64_t>(bytes, first_byte + 8 * i);
    TOK_REQUIRE(at >= last && at <= num_sequences,
                "{}: document {} begins at sequence {}, wanted {} to {}", name, i, at, last,
                num_sequences);
    last = at;
  }
}

void add_sequence(MegatronIndex& index, int64_t first_byte, int64_t num_tokens) {
  index.num_tokens += num_tokens;
  if (num_tokens == 0) return;
  if (!index.runs.empty()) {
    TokenRun& run = index.runs.back();
    if (run.first_byte + run.num_tokens * size_of(index.type) == first_byte) {
      run.num_tokens += num_tokens;
      return;
    }
  }
  index.runs.push_back({.first_byte = first_byte, .num_tokens = num_tokens});
}

}  // namespace

int64_t size_of(TokenType type) {
  switch (type) {
    case TokenType::kU8:
    case TokenType::kI8:
      return 1;
    case TokenType::kU16:
    case TokenType::kI16:
      return 2;
    case TokenType::kU32:
    case TokenType::kI32:
      return 4;
    case TokenType::kI64:
      return 8;
  }
  return 0;
}

int64_t token_at(TokenType type, std::span<const std::byte> bytes, int64_t index) {
  const int64_t offset = index * size_of(type);
  switch (type) {
    case TokenType::kU8:
      return load<uint8_t>(bytes, offset);
    case TokenType::kI8:
      return load<int8_t>(bytes, offset);
    case TokenType::kU16:
      return load<uint16_t>(bytes, offset);
    case TokenType::kI16:
      return load<int16_t>(bytes, offset);
    case TokenType::kU32:
      return load<uint32_t>(bytes, offset);
    case TokenType::kI32:
      return load<int32_t>(bytes, offset);
    case TokenType::kI64:
      return load<int64_t>(bytes, offset);
  }
  return 0;
}

void copy_tokens(TokenType type, std::span<const std::byte> bytes, int64_t first_byte,
                 std::span<int32_t> out) {
  const std::byte* in = bytes.data() + first_byte;
  switch (type) {
    case TokenType::kU8:
      return convert<uint8_t>(in, out);
    case TokenType::kI8:
      return convert<int8_t>(in, out);
    case TokenType::kU16:
      return convert<uint16_t>(in, out);
    case TokenType::kI16:
      return convert<int16_t>(in, out);
    case TokenType::kU32:
      return convert<uint32_t>(in, out);
    case TokenType::kI32:
      return convert<int32_t>(in, out);
    case TokenType::kI64:
      return convert<int64_t>(in, out);
  }
}

MegatronIndex parse_megatron_index(std::span<const std::byte> bytes, std::string_view name) {
  const auto size = static_cast<int64_t>(bytes.size());
  TOK_REQUIRE(size >= kMegatronHeaderBytes,
              "{}: wanted a Megatron index of {} bytes or more, got {}", name, kMegatronHeaderBytes,
              size);
  TOK_REQUIRE(std::memcmp(bytes.data(), kMegatronMagic.data(), kMegatronMagic.size()) == 0,
              "{}: wanted a Megatron index that begins with MMIDIDX, got other bytes", name);
  const auto version = load<uint64_t>(bytes, 9);
  TOK_REQUIRE(version == 1, "{}: wanted a Megatron index of version 1, got {}", name, version);

  MegatronIndex index;
  index.type = megatron_type(load<uint8_t>(bytes, 17), name);
  const auto sequences = load<uint64_t>(bytes, 18);
  const auto documents = load<uint64_t>(bytes, 26);
  const auto room = static_cast<uint64_t>(size - kMegatronHeaderBytes);
  TOK_REQUIRE(sequences <= room / 12 && documents <= (room - 12 * sequences) / 8,
              "{}: declares {} sequences and {} document ends, more than its {} bytes hold", name,
              sequences, documents, size);
  // Datasets of several kinds of input have a byte more for each sequence.
  const uint64_t rest = room - 12 * sequences - 8 * documents;
  TOK_REQUIRE(rest == 0 || rest == sequences,
              "{}: {} bytes follow the {} sequences and {} document ends that it declares", name,
              rest, sequences, documents);
  index.num_sequences = static_cast<int64_t>(sequences);
  index.num_documents = documents > 0 ? static_cast<int64_t>(documents) - 1 : 0;

  const int64_t lengths = kMegatronHeaderBytes;
  const int64_t pointers = lengths + 4 * index.num_sequences;
  const int64_t width = size_of(index.type);
  constexpr int64_t kFarthest = std::numeric_limits<int64_t>::max() / 2;
  for (int64_t i = 0; i < index.num_sequences; ++i) {
    const int64_t length = load<int32_t>(bytes, lengths + 4 * i);
    const auto first_byte = load<int64_t>(bytes, pointers + 8 * i);
    TOK_REQUIRE(
        length >= 0 && first_byte >= 0 && first_byte <= kFarthest && first_byte % width == 0,
        "{}: sequence {} has {} tokens at byte {}", name, i, length, first_byte);
    add_sequence(index, first_byte, length);
    if (length > 0) index.bytes_needed = std::max(index.bytes_needed, first_byte + length * width);
  }
  check_documents(bytes, pointers + 8 * index.num_sequences, static_cast<int64_t>(documents),
                  index.num_sequences, name);
  return index;
}

std::string megatron_header(TokenType type, int64_t num_sequences, int64_t num_document_ends) {
  TOK_CHECK(type == TokenType::kU16 || type == TokenType::kI32);
  const int64_t version = 1;
  std::string header(kMegatronMagic);
  const auto add = [&](int64_t number) {
    header.append(reinterpret_cast<const char*>(&number), sizeof(number));
  };
  add(version);
  header += static_cast<char>(type == TokenType::kU16 ? 8 : 4);
  add(num_sequences);
  add(num_document_ends);
  return header;
}

bool is_llmc_data(std::span<const std::byte> bytes) {
  if (bytes.size() < 4) return false;
  const auto magic = load<int32_t>(bytes, 0);
  return magic == kLlmcGpt2Magic || magic == kLlmcLlama3Magic;
}

LlmcHeader parse_llmc_header(std::span<const std::byte> bytes, std::string_view name) {
  const auto size = static_cast<int64_t>(bytes.size());
  TOK_REQUIRE(size >= LlmcHeader::kBytes, "{}: wanted an llm.c header of {} bytes, got {} in all",
              name, LlmcHeader::kBytes, size);
  const auto magic = load<int32_t>(bytes, 0);
  TOK_REQUIRE(is_llmc_data(bytes), "{}: wanted llm.c's magic {} or {}, got {}", name,
              kLlmcGpt2Magic, kLlmcLlama3Magic, magic);
  const bool gpt2 = magic == kLlmcGpt2Magic;
  const auto version = load<int32_t>(bytes, 4);
  TOK_REQUIRE(version == (gpt2 ? 1 : 7), "{}: wanted version {} after llm.c's magic {}, got {}",
              name, gpt2 ? 1 : 7, magic, version);
  LlmcHeader header;
  header.type = gpt2 ? TokenType::kU16 : TokenType::kU32;
  header.num_tokens = load<int32_t>(bytes, 8);
  const int64_t body = size - LlmcHeader::kBytes;
  TOK_REQUIRE(header.num_tokens >= 0 && header.num_tokens * size_of(header.type) == body,
              "{}: declares {} tokens of {} bytes, but {} bytes follow the header", name,
              header.num_tokens, size_of(header.type), body);
  return header;
}

}  // namespace tokamak
