#include "tokamak/data/cache/cache_writer.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <future>
#include <utility>

#include "tokamak/core/file_call.h"

namespace tokamak {
namespace {

constexpr int64_t kAheadTokens = int64_t{4} << 20;
constexpr int64_t kFirstCommit = 1 << 14;
constexpr int64_t kLargestCommit = 1 << 20;
constexpr size_t kBytesPerThread = size_t{1} << 18;
constexpr auto kPoll = std::chrono::milliseconds(20);
/// Processes that wait for tokens see them come.
constexpr auto kLongestSilence = std::chrono::milliseconds(500);

}  // namespace

void encode_piece(const Tokenizer& tokenizer, const TextPiece& piece, std::vector<int32_t>& ids) {
  ids.clear();
  if (piece.begins && tokenizer.bos()) ids.push_back(*tokenizer.bos());
  tokenizer.encode(piece.text, ids);
  if (piece.ends && tokenizer.eos()) ids.push_back(*tokenizer.eos());
}

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
      reader_(text.format, text.files, text.column, appender_->last().text,
              [this] { ++work_done_; }),
      tokenizer_(tokenizer),
      threads_(std::max(1, threads)),
      committed_at_(std::chrono::steady_clock::now()),
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
    while (wait_for_demand(stop) && write_some()) {
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
  }
  appender_.reset();
}

bool CacheWriter::wait_for_demand(const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  for (;;) {
    if (stop.stop_requested()) {
      appender_->commit(reader_.position(), false);
      return false;
    }
    const int64_t made = appender_->last().tokens + appender_->uncommitted();
    if (made < wanted_ + kAheadTokens || made < folder_.demand() + kAheadTokens) return true;
    if (appender_->uncommitted() > 0) appender_->commit(reader_.position(), false);
    never.wait_for(lock, stop, kPoll, [] { return false; });
  }
}

bool CacheWriter::write_some() {
  const bool more = gather();
  encode();
  ++work_done_;
  for (size_t i = 0; i < pieces_.size(); ++i) appender_->append(ids_[i], pieces_[i].ends);
  const int64_t enough = std::clamp(appender_->last().tokens / 8, kFirstCommit, kLargestCommit);
  const bool is_time = appender_->uncommitted() > 0 &&
                       std::chrono::steady_clock::now() - committed_at_ > kLongestSilence;
  if (!more || is_time || appender_->uncommitted() >= enough) {
    appender_->commit(reader_.position(), !more);
    committed_at_ = std::chrono::steady_clock::now();
  }
  return more;
}

bool CacheWriter::gather() {
  const size_t room = kBytesPerThread * static_cast<size_t>(threads_);
  pieces_.clear();
  if (reader_error_) std::rethrow_exception(reader_error_);
  try {
    TextPiece piece;
    for (size_t bytes = 0; bytes < room;) {
      if (!reader_.next(piece)) return false;
      bytes += piece.text.size() + 1;
      pieces_.push_back(std::move(piece));
    }
  } catch (...) {
    if (pieces_.empty()) throw;
    reader_error_ = std::current_exception();
  }
  return true;
}

void CacheWriter::encode() {
  ids_.resize(std::max(ids_.size(), pieces_.size()));
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < pieces_.size(); i = next++) {
      encode_piece(tokenizer_, pieces_[i], ids_[i]);
    }
  };
  std::vector<std::future<void>> helpers;
  const auto wanted = std::min(pieces_.size(), static_cast<size_t>(threads_));
  for (size_t t = 1; t < wanted; ++t) helpers.push_back(std::async(std::launch::async, work));
  work();
  for (std::future<void>& helper : helpers) helper.get();
}

}  // namespace tokamak
