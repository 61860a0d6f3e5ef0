// Text cut into rows such that each token is predicted in exactly one of them: what `tokamak eval`
// measures.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokamak/data/cache/token_cache.h"
#include "tokamak/data/loader.h"
#include "tokamak/data/text_reader.h"
#include "tokamak/data/token_source.h"
#include "tokamak/tokenizer/tokenizer.h"

namespace tokamak {

/// What one sequence is. kDocument: the text of a document after one token of context, which is
/// BOS, or EOS where the tokenizer has no BOS; neither is predicted. kWindow: all documents as
/// training reads them, one after the other with their BOS and EOS, of which all but the first
/// token are predicted.
enum class ScoreBy : uint8_t { kDocument, kWindow };

struct ScoringOptions {
  ScoreBy by = ScoreBy::kDocument;
  int64_t seq_len = 0;
  /// Tokens that a row predicts, 1 to seq_len; those before them are context. The first row of a
  /// sequence predicts all its tokens, and the last one is filled up with context.
  int64_t stride = 0;
  int64_t vocab_size = 0;  ///< of the model
};

struct TextCounts {
  int64_t documents = 0;  ///< 0 where tokens are read instead of text
  int64_t bytes = 0;      ///< of the text; 0 where it is not known
  int64_t tokens = 0;     ///< that are predicted
};

/// One pass over a text. It holds about a row of tokens, whatever the size of a document.
class ScoredRows {
 public:
  /// `tokenizer` must outlive it.
  ScoredRows(const TextSource& text, const Tokenizer& tokenizer, const ScoringOptions& options);

  /// Takes complete token files as one sequence. REQUIRES: ScoreBy::kWindow.
  ScoredRows(std::unique_ptr<TokenSource> tokens, const ScoringOptions& options);

  /// Reads `rows` rows, the last of which are empty (all labels kIgnoreIndex) at the end of the
  /// text; returns an empty batch after it. Throws Error, also for an id outside the vocabulary.
  Batch next(int64_t rows);

  /// Returns the counts of what was read so far.
  const TextCounts& counts() const { return counts_; }

 private:
  bool next_row(std::span<int32_t> tokens, std::span<int32_t> labels);
  void fill(int64_t wanted);
  void read_piece();
  void read_text();
  void read_tokens();
  void push(int32_t id);

  std::optional<TextReader> reader_;  ///< or
  std::unique_ptr<TokenSource> tokens_;
  const Tokenizer* tokenizer_ = nullptr;
  ScoringOptions options_;
  std::string name_;
  TextCounts counts_;
  TextPiece piece_;
  std::vector<int32_t> piece_ids_;
  int64_t tokens_read_ = 0;
  std::vector<int32_t> ids_;  ///< of the sequence, from its token `first_` on
  int64_t first_ = 0;
  int64_t scored_ = 0;    ///< the last token of the sequence that a row has predicted
  bool at_end_ = false;   ///< of the sequence
  bool is_done_ = false;  ///< the text has ended
};

}  // namespace tokamak
