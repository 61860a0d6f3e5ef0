// The files of a token cache and the journal that says how far they are sound.
//
//   tokens.u16 | tokens.u32   ids, appended
//   documents.u64             for each document the number of tokens up to its end, appended
//   journal                   64-byte records, appended after the bytes that they vouch for
//   lock, demand, beat        held by the writer; the number of tokens that readers want; a number
//                             that the writer counts up twice a second while it makes progress
//
// A record holds the totals so far, the position at which to go on in the text, a hash of the
// tokens since the previous record, and a hash of itself. It is written once its tokens are synced,
// so that other hosts see them too. Readers check each chunk by its hash before they use it; what
// is damaged is made anew from the text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tokamak/core/owned_fd.h"
#include "tokamak/data/text_reader.h"

namespace tokamak {

struct CacheRecord {
  int64_t tokens = 0;
  int64_t documents = 0;
  TextPosition text;
  bool synced = false;
  bool complete = false;
  uint64_t chunk_hash = 0;

  bool operator==(const CacheRecord&) const = default;
};

/// The open files of a cache that chunks are read from.
struct CacheFiles {
  OwnedFd tokens;
  OwnedFd documents;
};

/// The tokens between two records, and the numbers of tokens up to the ends of documents.
struct CacheChunk {
  std::vector<std::byte> tokens;
  std::vector<int64_t> ends;
};

/// One cache folder. Functions throw SystemError when the machine fails.
class CacheFolder {
 public:
  /// `token_bytes` is 2 or 4.
  CacheFolder(std::filesystem::path folder, int64_t token_bytes);

  const std::filesystem::path& path() const { return folder_; }

  int64_t token_bytes() const { return token_bytes_; }

  std::filesystem::path tokens_path() const;

  std::filesystem::path documents_path() const { return folder_ / "documents.u64"; }

  std::filesystem::path journal_path() const { return folder_ / "journal"; }

  /// Returns the records from number `first` on up to the last synced one, or to a damaged one.
  std::vector<CacheRecord> synced_records(int64_t first) const;

  CacheFiles open_files() const;

  /// Reads the raw ids from token `first` on; returns false if the file is shorter.
  bool read_tokens(const CacheFiles& files, int64_t first, std::span<std::byte> out) const;

  /// Returns the chunk between two records, or nothing if it does not have its hash.
  std::optional<CacheChunk> sound_chunk(const CacheFiles& files, const CacheRecord& before,
                                        const CacheRecord& record) const;
  bool is_sound(const CacheFiles& files, const CacheRecord& before,
                const CacheRecord& record) const;

  /// Takes the folder's lock, which its writer holds; returns no file if another process or thread
  /// has it. Throws Error if the folder cannot be written or its filesystem has no locks.
  std::optional<OwnedFd> try_lock() const;

  /// Tells the writer, in whatever process it is, that `tokens` are wanted.
  void set_demand(int64_t tokens) const;
  int64_t demand() const;

  /// Lets a new writer forget what earlier readers wanted.
  void clear_demand() const;

  /// Tells processes that wait for tokens that their writer is at work.
  void beat() const;
  int64_t beats() const;

 private:
  int64_t number_in(const char* name) const;
  void set_number(const char* name, int64_t number) const;

  std::filesystem::path folder_;
  int64_t token_bytes_;
};

/// The one writer of a cache folder. It holds the lock, drops what is damaged, and appends.
class CacheAppender {
 public:
  /// Returns nothing if another process or thread has the lock. Throws Error if the folder cannot
  /// be written or its filesystem has no locks. Tokens from `sound` on are dropped.
  static std::unique_ptr<CacheAppender> try_open(const CacheFolder& folder,
                                                 int64_t sound = INT64_MAX);

  /// Returns the record at which to go on.
  const CacheRecord& last() const { return last_; }

  /// Adds tokens; `ends` closes the document.
  void append(std::span<const int32_t> ids, bool ends);

  /// Adds a chunk of a cache to whose numbers of tokens `shift` is added here.
  void append_chunk(const CacheChunk& chunk, int64_t shift);

  /// Returns the number of tokens appended since the last commit.
  int64_t uncommitted() const { return tokens_ - last_.tokens; }

  /// Makes what was appended visible to readers; the text goes on at `text`.
  void commit(const TextPosition& text, bool complete);

 private:
  CacheAppender(const CacheFolder& folder, OwnedFd lock, int64_t sound);
  void mend(int64_t sound);

  CacheFolder folder_;
  OwnedFd lock_;
  OwnedFd tokens_fd_;
  OwnedFd documents_fd_;
  OwnedFd journal_fd_;
  CacheRecord last_;
  int64_t tokens_ = 0;
  std::vector<std::byte> pending_tokens_;
  std::vector<int64_t> pending_ends_;
};

}  // namespace tokamak
