// Parts of a cache that several processes make at once. A part is tokenized into a folder
// parts/FIRST-END below the cache's, with files and a journal of its own, under a lock of its own.
// The writer of the cache appends the parts in their order and removes them. Where no process has
// taken a part, the writer tokenizes it straight into the cache; while another process is at it,
// the writer appends what that has synced, and works on a later part itself. If a process dies, its
// locks are free, and what it has synced stays.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tokamak/data/cache/cache_journal.h"
#include "tokamak/data/cache/text_chunks.h"
#include "tokamak/data/cache/token_cache.h"

namespace tokamak {

/// Files first <= file < end of a text.
struct CachePart {
  int64_t first = 0;
  int64_t end = 0;
};

/// Cuts the files into parts of 4 MiB or more; a larger file is a part of its own.
std::vector<CachePart> parts_of(const std::vector<SourceFile>& files);

/// Returns the folder of a part.
CacheFolder folder_of(const CachePart& part, const CacheFolder& cache);

enum class PartState : uint8_t { kWaiting, kAppended, kComplete };

/// Appends to `out`, whose text goes on in the part, what is synced of the part beyond that.
/// kWaiting: there was nothing. kComplete: `out` has the whole part, and is complete if
/// `completes`.
PartState append_part(const CachePart& part, const CacheFolder& cache, CacheAppender& out,
                      bool completes);

/// Tokenizes parts that the writer has not reached. One thread may use it.
class PartHelper {
 public:
  /// `text` and `tokenizer` must outlive it.
  PartHelper(CacheFolder cache, const TextSource& text, const Tokenizer& tokenizer, int threads);

  /// Tokenizes some text of a part, a new one where none is begun. Returns false if there is none
  /// that it could take now. A part with an Error is left to the writer, which comes to it in
  /// order.
  bool help();

 private:
  bool claim();
  bool claim(const CachePart& part);
  bool is_reached(const CachePart& part) const;
  void tell();

  CacheFolder cache_;
  const TextSource& text_;
  const Tokenizer& tokenizer_;
  int threads_;
  std::vector<CachePart> parts_;
  std::vector<bool> are_done_;
  size_t part_ = 0;
  std::unique_ptr<CacheAppender> appender_;
  std::optional<TextChunks> chunks_;
  std::chrono::steady_clock::time_point told_at_;
  std::chrono::steady_clock::time_point look_at_;
};

}  // namespace tokamak
