#include "tokamak/data/cache/text_chunks.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <utility>

namespace tokamak {
namespace {

constexpr int64_t kLargestCommit = int64_t{1} << 20;
constexpr size_t kBytesPerThread = size_t{1} << 18;
/// Processes that wait for tokens see them come.
constexpr auto kLongestBetweenRecords = std::chrono::milliseconds(500);

std::vector<SourceFile> files_of(const std::vector<SourceFile>& files,
                                 const ChunkOptions& options) {
  const auto first = files.begin() + options.first_file;
  return {first, first + options.num_files};
}

}  // namespace

void encode_piece(const Tokenizer& tokenizer, const TextPiece& piece, std::vector<int32_t>& ids) {
  ids.clear();
  if (piece.begins && tokenizer.bos()) ids.push_back(*tokenizer.bos());
  tokenizer.encode(piece.text, ids);
  if (piece.ends && tokenizer.eos()) ids.push_back(*tokenizer.eos());
}

TextChunks::TextChunks(const TextSource& text, const Tokenizer& tokenizer,
                       const ChunkOptions& options, TextPosition start,
                       std::function<void()> skipped)
    : options_(options),
      reader_(text.format, files_of(text.files, options), text.column,
              {.file = start.file - options.first_file, .offset = start.offset, .line = start.line},
              std::move(skipped)),
      tokenizer_(tokenizer),
      committed_at_(std::chrono::steady_clock::now()) {}

TextPosition TextChunks::position() const {
  TextPosition at = reader_.position();
  at.file += options_.first_file;
  return at;
}

bool TextChunks::add_to(CacheAppender& out) {
  const bool more = gather();
  encode();
  for (size_t i = 0; i < pieces_.size(); ++i) out.append(ids_[i], pieces_[i].ends);
  const int64_t enough =
      std::max(options_.first_commit, std::min(out.last().tokens / 8, kLargestCommit));
  const bool is_time = out.uncommitted() > 0 &&
                       std::chrono::steady_clock::now() - committed_at_ > kLongestBetweenRecords;
  if (!more || is_time || out.uncommitted() >= enough) {
    out.commit(position(), !more && options_.completes);
    committed_at_ = std::chrono::steady_clock::now();
  }
  return more;
}

bool TextChunks::gather() {
  const size_t room = kBytesPerThread * static_cast<size_t>(options_.threads);
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

void TextChunks::encode() {
  ids_.resize(std::max(ids_.size(), pieces_.size()));
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < pieces_.size(); i = next++)
      encode_piece(tokenizer_, pieces_[i], ids_[i]);
  };
  std::vector<std::future<void>> helpers;
  const auto wanted = std::min(pieces_.size(), static_cast<size_t>(options_.threads));
  for (size_t t = 1; t < wanted; ++t) helpers.push_back(std::async(std::launch::async, work));
  work();
  for (std::future<void>& helper : helpers) helper.get();
}

}  // namespace tokamak
