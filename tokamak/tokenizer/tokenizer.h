// Converts text to token ids and back with a Hugging Face tokenizer.json (BPE), a tokenizer.model
// of tiktoken or SentencePiece, or plain bytes. docs/tokenizers.md says which parts of the formats
// are read.
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

/// A vocabulary with its rules. It is immutable after loading; any thread may call any function.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Appends the ids of `text`. It recognises added tokens in the text, adds no BOS or EOS, and
  /// accepts any bytes, UTF-8 or not.
  virtual void encode(std::string_view text, std::vector<int32_t>& ids) const = 0;

  /// Returns the bytes of `ids`, with special tokens as they are written; cut characters stay cut.
  /// Throws Error on an id outside the vocabulary.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;

  /// Returns the largest id plus one; smaller ids may be unused.
  virtual int64_t vocab_size() const = 0;

  /// Returns the id that opens a document, if the tokenizer has one.
  virtual std::optional<int32_t> bos() const = 0;

  /// Returns the id that closes a document, if the tokenizer has one.
  virtual std::optional<int32_t> eos() const = 0;

  /// Returns a digest of everything that changes ids. It is the same in every process and keys
  /// token caches.
  virtual uint64_t hash() const = 0;
};

/// Reads a folder (tokenizer.json with tokenizer_config.json and special_tokens_map.json, else
/// tokenizer.model, else vocab.json with merges.txt) or one of the first two files; "bytes" is
/// byte_tokenizer(). Throws Error naming the file and the place.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& folder_or_file);

/// Whether load_tokenizer() finds files of a tokenizer in the folder.
bool has_tokenizer(const std::filesystem::path& folder);

/// Ids 0-255 are the bytes, 256 is BOS, 257 is EOS; both decode to nothing.
std::unique_ptr<Tokenizer> byte_tokenizer();

/// The text of the files next to a tokenizer.json, empty where a file is absent.
struct TokenizerSideFiles {
  std::string_view config;
  std::string_view special_tokens_map;
  std::string_view added_tokens;
};

/// Parses a Hugging Face tokenizer.json; throws Error that begins with `name`.
std::unique_ptr<Tokenizer> parse_tokenizer_json(std::string_view text, std::string_view name,
                                                const TokenizerSideFiles& side = {});

/// Parses tiktoken's base64 rank lines, with the split rule and special tokens of Llama 3. Throws
/// Error that begins with `name` and the line.
std::unique_ptr<Tokenizer> parse_tiktoken(std::string_view text, std::string_view name);

/// Parses Mistral's tekken.json. As in Mistral's library text never becomes a special token. Throws
/// Error that begins with `name`.
std::unique_ptr<Tokenizer> parse_tekken(std::string_view text, std::string_view name);

/// Parses a SentencePiece model of type BPE, as Llama 2 and Mistral have; throws Error that begins
/// with `name`.
std::unique_ptr<Tokenizer> parse_sentencepiece(std::string_view bytes, std::string_view name);

}  // namespace tokamak
