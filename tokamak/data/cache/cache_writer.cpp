#include "tokamak/data/cache/cache_writer.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <utility>

#include "tokamak/core/file_call.h"

namespace tokamak {
namespace {

constexpr int64_t kAheadTokens = int64_t{4} << 20;
constexpr int64_t kFirstCommit = 1 << 14;
constexpr auto kPoll = std::chrono::milliseconds(20);
/// Processes that wait for tokens see them come.
constexpr auto kLongestSilence = std::chrono::milliseconds(500);

}  // namespace

std::unique_ptr<CacheWriter> CacheWriter::try_start(const CacheFolder& folder,
                                                    const TextSource& text,
                                                    const Tokenizer& tokenizer, int threads,
                                                    int64_t sound) {
  std::unique_ptr<CacheAppender> appender = CacheAppender::try_open(folder, sound);
  if (!appender || appender->last().complete) return nullptr;
  folder.clear_demand();
  return std::unique_ptr<CacheWriter>(
      new CacheWriter(std::move(appender), folder, text, tokenizer, threads));
}

CacheWriter::CacheWriter(std::unique_ptr<CacheAppender> appender, CacheFolder folder,
                         const TextSource& text, const Tokenizer& tokenizer, int threads)
    : appender_(std::move(appender)),
      folder_(std::move(folder)),
      text_(text),
      tokenizer_(tokenizer),
      threads_(std::max(1, threads)),
      helper_(folder_, text, tokenizer, threads_),
      thread_([this](const std::stop_token& stop) { run(stop); }),
      telling_([this](const std::stop_token& stop) { tell(stop); }) {}

// Processes that wait for tokens also wait while this one unpacks, encodes, or is blocked in a file
// call, which has its own watchdog.
void CacheWriter::tell(const std::stop_token& stop) {
  constexpr std::chrono::seconds kLongestCall{60};
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  int64_t known = 0;
  uint64_t call = 0;
  auto call_since = std::chrono::steady_clock::now();
  while (!stop.stop_requested()) {
    never.wait_for(lock, stop, kLongestSilence, [] { return false; });
    const auto now = std::chrono::steady_clock::now();
    const uint64_t number = oldest_file_call().number;
    if (std::exchange(call, number) != number) call_since = now;
    const bool is_in_call = number != 0 && now - call_since < kLongestCall;
    const int64_t done = work_done_;
    if (std::exchange(known, done) != done || is_in_call) folder_.beat();
  }
}

void CacheWriter::want(int64_t tokens) {
  int64_t known = wanted_.load();
  while (known < tokens && !wanted_.compare_exchange_weak(known, tokens)) {
  }
}

void CacheWriter::check() const {
  const std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(error_);
}

void CacheWriter::run(const std::stop_token& stop) {
  try {
    write_parts(stop);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
  }
  appender_.reset();
  lock_.reset();
}

bool CacheWriter::wait_for_demand(const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  for (;;) {
    if (stop.stop_requested()) {
      if (appender_->uncommitted() > 0) appender_->commit(chunks_->position(), false);
      return false;
    }
    const int64_t made = appender_->last().tokens + appender_->uncommitted();
    if (made < wanted_ + kAheadTokens || made < folder_.demand() + kAheadTokens) return true;
    if (appender_->uncommitted() > 0) appender_->commit(chunks_->position(), false);
    never.wait_for(lock, stop, kPoll, [] { return false; });
  }
}

void CacheWriter::write_parts(const std::stop_token& stop) {
  const auto num_files = std::ssize(text_.files);
  for (const CachePart& part : parts_of(text_.files)) {
    if (part.end <= appender_->last().text.file) continue;
    if (!write_part(part, part.end == num_files, stop)) return;
    std::error_code ignored;
    std::filesystem::remove_all(folder_of(part, folder_).path(), ignored);
    lock_.reset();
  }
  if (!appender_->last().complete) appender_->commit({.file = num_files}, true);
  std::error_code ignored;
  std::filesystem::remove_all(folder_.path() / "parts", ignored);
}

// Returns whether the whole part is in the cache.
bool CacheWriter::write_part(const CachePart& part, bool completes, const std::stop_token& stop) {
  if (take_part(part, completes, stop)) return true;
  if (!lock_) return false;
  chunks_.emplace(text_, tokenizer_,
                  ChunkOptions{.first_file = part.first,
                               .num_files = part.end - part.first,
                               .threads = threads_,
                               .first_commit = kFirstCommit,
                               .completes = completes},
                  appender_->last().text, [this] { ++work_done_; });
  bool more = true;
  while (more && wait_for_demand(stop)) {
    more = chunks_->add_to(*appender_);
    ++work_done_;
  }
  chunks_.reset();
  return !more;
}

// Takes over what other processes make of the part. Returns whether that is all of it; if it is
// not, nobody makes the rest, and the part is locked, unless it was stopped.
bool CacheWriter::take_part(const CachePart& part, bool completes, const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  while (!lock_ && wait_for_demand(stop)) {
    lock_ = folder_of(part, folder_).try_lock();
    const PartState state = append_part(part, folder_, *appender_, completes);
    if (state == PartState::kComplete) return true;
    if (lock_ || state == PartState::kAppended || helper_.help()) {
      ++work_done_;
    } else {
      never.wait_for(lock, stop, kPoll, [] { return false; });
    }
  }
  return false;
}

}  // namespace tokamak
