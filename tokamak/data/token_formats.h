// Parses headers of token files that others made. Nothing here trusts a declared size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tokamak {

/// The element type of a token file, little-endian.
enum class TokenType : uint8_t { kU8, kI8, kU16, kI16, kU32, kI32, kI64 };

int64_t size_of(TokenType type);

/// Returns element `index` of `bytes`. REQUIRES: the element lies inside `bytes`.
int64_t token_at(TokenType type, std::span<const std::byte> bytes, int64_t index);

/// Converts out.size() elements from `first_byte` on; ids beyond int32 become -1.
void copy_tokens(TokenType type, std::span<const std::byte> bytes, int64_t first_byte,
                 std::span<int32_t> out);

/// Tokens that lie one after another in a file.
struct TokenRun {
  int64_t first_byte = 0;
  int64_t num_tokens = 0;
};

/// A Megatron .idx file, which says where the sequences lie in the .bin file beside it.
struct MegatronIndex {
  TokenType type = TokenType::kU16;
  int64_t num_sequences = 0;
  int64_t num_documents = 0;
  int64_t num_tokens = 0;
  /// The least size of the .bin file.
  int64_t bytes_needed = 0;
  /// Runs of sequences; neighbouring sequences are joined.
  std::vector<TokenRun> runs;
};

/// Throws Error that begins with `name` if the header, the counts or the positions are not sound.
MegatronIndex parse_megatron_index(std::span<const std::byte> bytes, std::string_view name);

/// Returns the first bytes of a .idx file, which the lengths of its sequences follow, their places
/// in bytes, and the document ends. REQUIRES: `type` is kU16 or kI32.
std::string megatron_header(TokenType type, int64_t num_sequences, int64_t num_document_ends);

/// The header of an llm.c data shard: 256 int32, followed by tokens.
struct LlmcHeader {
  static constexpr int64_t kBytes = 1024;
  TokenType type = TokenType::kU16;
  int64_t num_tokens = 0;
};

/// Whether `bytes` begins with a magic number of llm.c's data files.
bool is_llmc_data(std::span<const std::byte> bytes);

/// `bytes` is the whole file; throws Error that begins with `name`.
LlmcHeader parse_llmc_header(std::span<const std::byte> bytes, std::string_view name);

}  // namespace tokamak
