// Learns a byte-level BPE vocabulary from text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokamak/tokenizer/tokenizer.h"

namespace tokamak {

/// How text is cut into words before merging.
enum class SplitRule : uint8_t { kGpt2, kLlama3 };

struct TrainOptions {
  /// The limit on ids, special tokens included.
  int64_t vocab_size = 32768;
  SplitRule split = SplitRule::kLlama3;
  /// The tokens that get the first ids, in this order; may be empty.
  std::vector<std::string> special_tokens = {"<|begin_of_text|>", "<|end_of_text|>"};
  /// The special tokens that open and close a document; empty for none.
  std::string bos = "<|begin_of_text|>";
  std::string eos = "<|end_of_text|>";
};

/// A learned tokenizer as the files that Hugging Face transformers load.
struct TokenizerFiles {
  std::string tokenizer_json;
  std::string tokenizer_config;

  /// Returns the tokenizer itself; `name` begins its errors.
  std::unique_ptr<Tokenizer> parse(std::string_view name) const;

  /// Writes tokenizer.json and tokenizer_config.json.
  void save(const std::filesystem::path& folder) const;
};

/// Counts words as documents arrive, so that memory grows with distinct words, not with text.
class BpeTrainer {
 public:
  /// Throws Error if vocab_size cannot hold 256 bytes and the special tokens, or bos or eos is not
  /// among them.
  explicit BpeTrainer(TrainOptions options);
  BpeTrainer(BpeTrainer&&) noexcept;
  BpeTrainer& operator=(BpeTrainer&&) noexcept;
  ~BpeTrainer();

  /// Adds one document, or any piece of one that ends where a word ends.
  void add(std::string_view document);

  /// Joins the most frequent pair repeatedly. Ties go to the smaller ids, so the same text gives
  /// the same files. It stops early when no pair occurs twice.
  TokenizerFiles train() const;

 private:
  struct Words;
  TrainOptions options_;
  std::unique_ptr<Words> words_;
};

/// Trains on text in memory.
TokenizerFiles train_bpe(std::span<const std::string_view> documents, TrainOptions options);

}  // namespace tokamak
