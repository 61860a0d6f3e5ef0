// Text that is tokenized chunk by chunk into a cache's files.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <vector>

#include "tokamak/data/cache/cache_journal.h"
#include "tokamak/data/cache/token_cache.h"
#include "tokamak/data/text_reader.h"
#include "tokamak/tokenizer/tokenizer.h"

namespace tokamak {

/// Sets `ids` to those of the piece, with the tokenizer's ids of a document's begin and end.
void encode_piece(const Tokenizer& tokenizer, const TextPiece& piece, std::vector<int32_t>& ids);

/// Files of a text that one process tokenizes, and how it does that.
struct ChunkOptions {
  int64_t first_file = 0;
  int64_t num_files = 0;
  int threads = 1;
  /// A record is written for this many tokens, or twice a second.
  int64_t first_commit = 0;
  /// The text ends with these files.
  bool completes = false;
};

class TextChunks {
 public:
  /// Begins at `start`, in which files count from the first of the text, as in all positions.
  /// `text` and `tokenizer` must outlive it. Calls `skipped` as TextReader does.
  TextChunks(const TextSource& text, const Tokenizer& tokenizer, const ChunkOptions& options,
             TextPosition start, std::function<void()> skipped);

  /// Tokenizes some more text into `out`, with a record if it is time for one. Returns false after
  /// the last, which has a record.
  bool add_to(CacheAppender& out);

  /// Returns where the text goes on after what was added.
  TextPosition position() const;

 private:
  bool gather();
  void encode();

  ChunkOptions options_;
  TextReader reader_;
  const Tokenizer& tokenizer_;
  std::chrono::steady_clock::time_point committed_at_;
  std::vector<TextPiece> pieces_;
  std::exception_ptr reader_error_;
  std::vector<std::vector<int32_t>> ids_;
};

}  // namespace tokamak
