// The thread that tokenizes text into a cache folder.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include "tokamak/data/cache/cache_journal.h"
#include "tokamak/data/cache/token_cache.h"
#include "tokamak/data/text_reader.h"
#include "tokamak/tokenizer/tokenizer.h"

namespace tokamak {

/// Sets `ids` to those of the piece, with the tokenizer's ids of a document's begin and end.
void encode_piece(const Tokenizer& tokenizer, const TextPiece& piece, std::vector<int32_t>& ids);

/// Runs until the text ends, an error occurs or it is destroyed; then it frees the cache's lock.
class CacheWriter {
 public:
  /// Takes the lock, or returns nothing if another writer has it. Tokens from `sound` on are made
  /// anew.
  static std::unique_ptr<CacheWriter> try_start(const CacheFolder& folder, const TextSource& text,
                                                const Tokenizer& tokenizer, int threads,
                                                int64_t sound = INT64_MAX);

  /// Says that readers of this process want `tokens`.
  void want(int64_t tokens);

  /// Rethrows what stopped the thread.
  void check() const;

 private:
  CacheWriter(std::unique_ptr<CacheAppender> appender, CacheFolder folder, const TextSource& text,
              const Tokenizer& tokenizer, int threads);
  void run(const std::stop_token& stop);
  void tell(const std::stop_token& stop);
  bool write_some();
  bool gather();
  void encode();
  bool wait_for_demand(const std::stop_token& stop);

  std::unique_ptr<CacheAppender> appender_;
  CacheFolder folder_;
  TextReader reader_;
  const Tokenizer& tokenizer_;
  int threads_;
  std::chrono::steady_clock::time_point committed_at_;
  std::vector<TextPiece> pieces_;
  std::exception_ptr reader_error_;
  std::vector<std::vector<int32_t>> ids_;
  std::atomic<int64_t> wanted_{0};
  mutable std::mutex mutex_;
  std::exception_ptr error_;
  std::atomic<int64_t> work_done_{0};
  std::jthread thread_;
  std::jthread telling_;
};

}  // namespace tokamak
