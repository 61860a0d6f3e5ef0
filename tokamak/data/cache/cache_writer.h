// The thread that tokenizes text into a cache folder.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>

#include "tokamak/data/cache/cache_journal.h"
#include "tokamak/data/cache/cache_parts.h"
#include "tokamak/data/cache/text_chunks.h"
#include "tokamak/data/cache/token_cache.h"
#include "tokamak/tokenizer/tokenizer.h"

namespace tokamak {

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
  void write_parts(const std::stop_token& stop);
  bool write_part(const CachePart& part, bool completes, const std::stop_token& stop);
  bool take_part(const CachePart& part, bool completes, const std::stop_token& stop);
  bool wait_for_demand(const std::stop_token& stop);

  std::unique_ptr<CacheAppender> appender_;
  CacheFolder folder_;
  const TextSource& text_;
  const Tokenizer& tokenizer_;
  int threads_;
  std::optional<TextChunks> chunks_;  // of the part that it tokenizes itself
  std::optional<OwnedFd> lock_;       // of that part
  PartHelper helper_;
  std::atomic<int64_t> wanted_{0};
  mutable std::mutex mutex_;
  std::exception_ptr error_;
  std::atomic<int64_t> work_done_{0};
  std::jthread thread_;
  std::jthread telling_;
};

}  // namespace tokamak
