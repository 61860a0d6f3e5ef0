// Text to token ids and back: Hugging Face tokenizer.json (byte-level BPE), tiktoken
// tokenizer.model, and plain bytes. docs/tokenizers.md says which parts of the formats are read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tokamak {

/// A vocabulary with its rules. Immutable after loading; every function may be called from any
/// thread.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Appends the ids of `text`: added tokens in the text are recognised, BOS and EOS are not added.
  /// Any bytes are accepted, UTF-8 or not.
  virtual void encode(std::string_view text, std::vector<int32_t>& ids) const = 0;

  /// The bytes of `ids`, special tokens as they are written; cut characters stay cut. Throws Error
  /// on an id outside the vocabulary.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;

  /// The largest id plus one; ids in between may be unused.
  virtual int64_t vocab_size() const = 0;

  /// The id that opens a document, if the tokenizer has one.
  virtual std::optional<int32_t> bos() const = 0;

  /// The id that closes a document, if the tokenizer has one.
  virtual std::optional<int32_t> eos() const = 0;

  /// A digest of everything that changes ids, the same in every process: keys token caches.
  virtual uint64_t hash() const = 0;
};

/// Reads a folder (tokenizer.json with tokenizer_config.json and special_tokens_map.json, else
/// tokenizer.model) or one such file; "bytes" is byte_tokenizer(). Throws Error naming the file and
/// the place.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& folder_or_file);

/// Ids 0-255 are the bytes, 256 is BOS, 257 is EOS; both decode to nothing.
std::unique_ptr<Tokenizer> byte_tokenizer();

/// Text of the files beside a tokenizer.json; empty where absent.
struct TokenizerSideFiles {
  std::string_view config;
  std::string_view special_tokens_map;
};

/// A Hugging Face tokenizer.json; throws Error that begins with `name`.
std::unique_ptr<Tokenizer> parse_tokenizer_json(std::string_view text, std::string_view name,
                                                const TokenizerSideFiles& side = {});

/// tiktoken's base64 rank lines, with the split rule and special tokens of Llama 3; throws Error
/// that begins with `name` and the line.
std::unique_ptr<Tokenizer> parse_tiktoken(std::string_view text, std::string_view name);

}  // namespace tokamak
