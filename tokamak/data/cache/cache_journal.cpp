#include "tokamak/data/cache/cache_journal.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/file_call.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

struct DiskRecord {
  int64_t tokens;
  int64_t documents;
  int64_t file;
  int64_t offset;
  int64_t line;
  uint64_t flags;
  uint64_t chunk_hash;
  uint64_t hash;
};

constexpr int64_t kCheckedBytes = int64_t{512} << 20;
constexpr int64_t kRecordBytes = sizeof(DiskRecord);
static_assert(kRecordBytes == 64);
constexpr uint64_t kSynced = 1;
constexpr uint64_t kComplete = 2;

constexpr const char* kDemand = "demand";
constexpr const char* kBeat = "beat";

uint64_t hash_of(const DiskRecord& record) {
  return XXH3_64bits(&record, offsetof(DiskRecord, hash));
}

DiskRecord to_disk(const CacheRecord& record) {
  DiskRecord disk{.tokens = record.tokens,
                  .documents = record.documents,
                  .file = record.text.file,
                  .offset = record.text.offset,
                  .line = record.text.line,
                  .flags = (record.synced ? kSynced : 0) | (record.complete ? kComplete : 0),
                  .chunk_hash = record.chunk_hash,
                  .hash = 0};
  disk.hash = hash_of(disk);
  return disk;
}

CacheRecord from_disk(const DiskRecord& disk) {
  return {.tokens = disk.tokens,
          .documents = disk.documents,
          .text = {.file = disk.file, .offset = disk.offset, .line = disk.line},
          .synced = (disk.flags & kSynced) != 0,
          .complete = (disk.flags & kComplete) != 0,
          .chunk_hash = disk.chunk_hash};
}

int64_t size_of_file(int fd, const fs::path& path) {
  struct stat info {};

  if (::fstat(fd, &info) != 0) throw_errno("stat " + path.string());
  return info.st_size;
}

bool read_at(int fd, int64_t offset, void* out, size_t count) {
  auto* bytes = static_cast<char*>(out);
  while (count > 0) {
    const ssize_t got = ::pread(fd, bytes, count, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    bytes += got;
    offset += got;
    count -= static_cast<size_t>(got);
  }
  return true;
}

void write_all(int fd, const void* in, size_t count, const fs::path& path) {
  const FileCall call("write", path);
  const auto* bytes = static_cast<const char*>(in);
  while (count > 0) {
    const ssize_t done = ::write(fd, bytes, count);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) throw_errno("write " + path.string());
    bytes += done;
    count -= static_cast<size_t>(done);
  }
}

int open_append(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) throw_path_errno("cannot write " + path.string());
  return fd;
}

std::optional<CacheRecord> sound_record(int fd, int64_t index) {
  DiskRecord disk{};
  if (!read_at(fd, index * kRecordBytes, &disk, sizeof(disk)) || disk.hash != hash_of(disk)) {
    return std::nullopt;
  }
  return from_disk(disk);
}

uint64_t hash_chunk(std::span<const std::byte> tokens, std::span<const std::byte> ends) {
  return XXH3_64bits_withSeed(tokens.data(), tokens.size(), XXH3_64bits(ends.data(), ends.size()));
}

std::optional<std::vector<std::byte>> part_of(int fd, int64_t first, int64_t last,
                                              const fs::path& path) {
  if (first < 0 || first > last || last > size_of_file(fd, path)) return std::nullopt;
  std::vector<std::byte> part(last - first);
  if (!read_at(fd, first, part.data(), part.size())) return std::nullopt;
  return part;
}

void cut_file(int fd, int64_t size, const fs::path& path) {
  if (::ftruncate(fd, size) != 0) throw_errno("truncate " + path.string());
}

void sync(int fd, const fs::path& path) {
  const FileCall call("fsync", path);
  if (::fdatasync(fd) != 0) throw_errno("sync " + path.string());
}

}  // namespace

CacheFolder::CacheFolder(fs::path folder, int64_t token_bytes)
    : folder_(std::move(folder)), token_bytes_(token_bytes) {}

fs::path CacheFolder::tokens_path() const {
  return folder_ / (token_bytes_ == 2 ? "tokens.u16" : "tokens.u32");
}

std::vector<CacheRecord> CacheFolder::synced_records(int64_t first) const {
  std::vector<CacheRecord> records;
  const OwnedFd journal(::open(journal_path().c_str(), O_RDONLY | O_CLOEXEC));
  if (journal.get() < 0) return records;
  while (const auto record = sound_record(journal.get(), first + std::ssize(records)))
    records.push_back(*record);
  while (!records.empty() && !records.back().synced) records.pop_back();
  return records;
}

CacheFiles CacheFolder::open_files() const {
  const auto open = [](const fs::path& path) {
    OwnedFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (file.get() < 0) throw_path_errno("cannot open " + path.string());
    return file;
  };
  return {.tokens = open(tokens_path()), .documents = open(documents_path())};
}

bool CacheFolder::read_tokens(const CacheFiles& files, int64_t first,
                              std::span<std::byte> out) const {
  return read_at(files.tokens.get(), first * token_bytes_, out.data(), out.size());
}

bool CacheFolder::is_sound(const CacheFiles& files, const CacheRecord& before,
                           const CacheRecord& record) const {
  return sound_chunk(files, before, record).has_value();
}

std::optional<CacheChunk> CacheFolder::sound_chunk(const CacheFiles& files,
                                                   const CacheRecord& before,
                                                   const CacheRecord& record) const {
  auto tokens = part_of(files.tokens.get(), before.tokens * token_bytes_,
                        record.tokens * token_bytes_, tokens_path());
  const auto ends =
      part_of(files.documents.get(), before.documents * 8, record.documents * 8, documents_path());
  if (!tokens || !ends || hash_chunk(*tokens, *ends) != record.chunk_hash) return std::nullopt;
  CacheChunk chunk{.tokens = std::move(*tokens), .ends = std::vector<int64_t>(ends->size() / 8)};
  std::memcpy(chunk.ends.data(), ends->data(), ends->size());
  return chunk;
}

int64_t CacheFolder::number_in(const char* name) const {
  int64_t number = 0;
  const OwnedFd file(::open((folder_ / name).c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0 || !read_at(file.get(), 0, &number, sizeof(number))) return 0;
  return number;
}

void CacheFolder::set_number(const char* name, int64_t number) const {
  const fs::path path = folder_ / name;
  const OwnedFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
  if (file.get() < 0) return;
  if (::pwrite(file.get(), &number, sizeof(number), 0) < 0) throw_errno("write " + path.string());
}

void CacheFolder::set_demand(int64_t tokens) const {
  if (demand() < tokens) set_number(kDemand, tokens);
}

int64_t CacheFolder::demand() const {
  return number_in(kDemand);
}

void CacheFolder::clear_demand() const {
  std::error_code ignored;
  fs::remove(folder_ / kDemand, ignored);
}

void CacheFolder::beat() const {
  set_number(kBeat, beats() + 1);
}

int64_t CacheFolder::beats() const {
  return number_in(kBeat);
}

std::optional<OwnedFd> CacheFolder::try_lock() const {
  make_folders(folder_);
  const fs::path path = folder_ / "lock";
  OwnedFd lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (lock.get() < 0) throw_path_errno("cannot write token cache " + path.string());
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK || errno == EINTR) return std::nullopt;
    fail("{}: this filesystem has no file locks ({}); put the token cache on one that has",
         path.string(), std::strerror(errno));
  }
  return lock;
}

std::unique_ptr<CacheAppender> CacheAppender::try_open(const CacheFolder& folder, int64_t sound) {
  std::optional<OwnedFd> lock = folder.try_lock();
  if (!lock) return nullptr;
  return std::unique_ptr<CacheAppender>(new CacheAppender(folder, std::move(*lock), sound));
}

CacheAppender::CacheAppender(const CacheFolder& folder, OwnedFd lock, int64_t sound)
    : folder_(folder),
      lock_(std::move(lock)),
      tokens_fd_(open_append(folder.tokens_path())),
      documents_fd_(open_append(folder.documents_path())),
      journal_fd_(open_append(folder.journal_path())) {
  mend(sound);
  tokens_ = last_.tokens;
}

// Only the end is hashed here, in case a disk has lost what it called synced; readers hash the
// rest.
void CacheAppender::mend(int64_t sound) {
  const CacheFiles files = folder_.open_files();
  const int64_t unit = folder_.token_bytes();
  const int64_t tokens = size_of_file(files.tokens.get(), folder_.tokens_path()) / unit;
  const int64_t documents = size_of_file(files.documents.get(), folder_.documents_path()) / 8;
  std::vector<CacheRecord> records;
  while (const auto record = sound_record(journal_fd_.get(), std::ssize(records))) {
    if (record->tokens > std::min(sound, tokens) || record->documents > documents) break;
    records.push_back(*record);
  }
  const int64_t believed = records.empty() ? 0 : records.back().tokens - kCheckedBytes / unit;
  int64_t kept = 0;
  for (const CacheRecord& record : records) {
    if (record.tokens > believed && !folder_.is_sound(files, last_, record)) break;
    last_ = record;
    ++kept;
  }
  cut_file(journal_fd_.get(), kept * kRecordBytes, folder_.journal_path());
  cut_file(tokens_fd_.get(), last_.tokens * unit, folder_.tokens_path());
  cut_file(documents_fd_.get(), last_.documents * 8, folder_.documents_path());
}

void CacheAppender::append(std::span<const int32_t> ids, bool ends) {
  tokens_ += static_cast<int64_t>(ids.size());
  const auto unit = static_cast<size_t>(folder_.token_bytes());
  size_t at = pending_tokens_.size();
  pending_tokens_.resize(at + ids.size() * unit);
  for (const int32_t id : ids) {
    std::memcpy(pending_tokens_.data() + at, &id, unit);
    at += unit;
  }
  if (ends) pending_ends_.push_back(tokens_);
}

void CacheAppender::append_chunk(const CacheChunk& chunk, int64_t shift) {
  tokens_ += std::ssize(chunk.tokens) / folder_.token_bytes();
  pending_tokens_.insert(pending_tokens_.end(), chunk.tokens.begin(), chunk.tokens.end());
  for (const int64_t end : chunk.ends) pending_ends_.push_back(end + shift);
}

void CacheAppender::commit(const TextPosition& text, bool complete) {
  write_all(tokens_fd_.get(), pending_tokens_.data(), pending_tokens_.size(),
            folder_.tokens_path());
  write_all(documents_fd_.get(), pending_ends_.data(), pending_ends_.size() * 8,
            folder_.documents_path());
  CacheRecord record{
      .tokens = tokens_,
      .documents = last_.documents + static_cast<int64_t>(pending_ends_.size()),
      .text = text,
      .synced = true,
      .complete = complete,
      .chunk_hash = hash_chunk(pending_tokens_, std::as_bytes(std::span(pending_ends_)))};
  sync(tokens_fd_.get(), folder_.tokens_path());
  sync(documents_fd_.get(), folder_.documents_path());
  const DiskRecord disk = to_disk(record);
  write_all(journal_fd_.get(), &disk, sizeof(disk), folder_.journal_path());
  sync(journal_fd_.get(), folder_.journal_path());
  pending_tokens_.clear();
  pending_ends_.clear();
  last_ = record;
}

}  // namespace tokamak
