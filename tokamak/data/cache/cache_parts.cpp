#include "tokamak/data/cache/cache_parts.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "tokamak/core/error.h"

namespace tokamak {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kPartBytes = int64_t{4} << 20;
constexpr int64_t kTokensPerRecord = int64_t{1} << 20;
constexpr auto kBetweenLooks = std::chrono::milliseconds(200);

}  // namespace

std::vector<CachePart> parts_of(const std::vector<SourceFile>& files) {
  std::vector<CachePart> parts;
  int64_t bytes = kPartBytes;
  for (size_t i = 0; i < files.size(); ++i) {
    const auto file = static_cast<int64_t>(i);
    if (bytes >= kPartBytes || files[i].size >= kPartBytes) {
      parts.push_back({.first = file, .end = file});
      bytes = 0;
    }
    parts.back().end = file + 1;
    bytes += files[i].size;
  }
  return parts;
}

CacheFolder folder_of(const CachePart& part, const CacheFolder& cache) {
  return {cache.path() / "parts" / fmt::format("{}-{}", part.first, part.end), cache.token_bytes()};
}

PartState append_part(const CachePart& part, const CacheFolder& cache, CacheAppender& out,
                      bool completes) {
  const CacheFolder folder = folder_of(part, cache);
  const std::vector<CacheRecord> records = folder.synced_records(0);
  CacheRecord before{.text = {.file = part.first}};
  size_t i = 0;
  for (; before.text != out.last().text && i < records.size(); ++i) before = records[i];
  if (before.text != out.last().text || i == records.size()) return PartState::kWaiting;
  const CacheFiles files = folder.open_files();
  const size_t first = i;
  for (; i < records.size(); ++i) {
    const auto chunk = folder.sound_chunk(files, before, records[i]);
    if (!chunk) break;
    out.append_chunk(*chunk, out.last().tokens - before.tokens);
    before = records[i];
    out.commit(before.text, before.complete && completes);
  }
  if (before.complete) return PartState::kComplete;
  return i > first ? PartState::kAppended : PartState::kWaiting;
}

PartHelper::PartHelper(CacheFolder cache, const TextSource& text, const Tokenizer& tokenizer,
                       int threads)
    : cache_(std::move(cache)),
      text_(text),
      tokenizer_(tokenizer),
      threads_(threads),
      parts_(parts_of(text.files)),
      are_done_(parts_.size()) {}

bool PartHelper::help() {
  bool more = false;
  try {
    if (!chunks_ && !claim()) return false;
    more = chunks_->add_to(*appender_);
  } catch (const Error&) {
    more = false;
  }
  if (!more) {
    chunks_.reset();
    appender_.reset();
    are_done_[part_] = true;
  }
  tell();
  return true;
}

bool PartHelper::claim() {
  if (Clock::now() < look_at_) return false;
  for (part_ = 0; part_ < parts_.size(); ++part_)
    if (!are_done_[part_] && claim(parts_[part_])) return true;
  look_at_ = Clock::now() + kBetweenLooks;
  return false;
}

// The writer removes a part while it holds the part's lock, after its record of it: whoever gets
// the lock then sees that record.
bool PartHelper::claim(const CachePart& part) {
  are_done_[part_] = is_reached(part);
  if (are_done_[part_]) return false;
  const CacheFolder folder = folder_of(part, cache_);
  appender_ = CacheAppender::try_open(folder);
  if (!appender_) return false;
  are_done_[part_] = appender_->last().complete || is_reached(part);
  if (are_done_[part_]) {
    appender_.reset();
    return false;
  }
  const TextPosition start = appender_->last() == CacheRecord() ? TextPosition{.file = part.first}
                                                                : appender_->last().text;
  chunks_.emplace(text_, tokenizer_,
                  ChunkOptions{.first_file = part.first,
                               .num_files = part.end - part.first,
                               .threads = threads_,
                               .first_commit = kTokensPerRecord,
                               .completes = true},
                  start, [this] { tell(); });
  return true;
}

bool PartHelper::is_reached(const CachePart& part) const {
  const std::vector<CacheRecord> records = cache_.synced_records(0);
  if (records.empty()) return false;
  const TextPosition& at = records.back().text;
  return at.file > part.first || (at.file == part.first && at.offset > 0);
}

// Processes that wait for the writer, which waits for this one, see that there is progress.
void PartHelper::tell() {
  if (Clock::now() - told_at_ < kBetweenLooks) return;
  told_at_ = Clock::now();
  cache_.beat();
}

}  // namespace tokamak
