// Files are written aside, synced and renamed, so none is ever half written; reading maps them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokamak/core/owned_fd.h"

namespace tokamak {

/// A read-only mapping of a whole file; empty files map to an empty span. Throws Error naming the
/// path if it cannot be opened. Truncating the file while mapped is the caller's risk.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }

  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// Opens a regular file for reading and returns its descriptor, which is closed upon exec.
/// Throws Error naming the path if it cannot be opened or is something else; a pipe or a device
/// would be waited for.
OwnedFd open_regular_file(const std::filesystem::path& path);

/// The most bytes of a file that people write, as a configuration.
inline constexpr int64_t kSmallFileBytes = int64_t{16} << 20;

/// Returns the whole file as text; throws Error naming the path, also where the file has more than
/// `most_bytes`.
std::string read_file(const std::filesystem::path& path, int64_t most_bytes = INT64_MAX);

/// Returns the first bytes of a regular file, at most `bytes`; throws Error naming the path.
std::string read_front(const std::filesystem::path& path, int64_t bytes);

/// A file descriptor that writes everything or throws SystemError (disk full, I/O error). It throws
/// Error where the path itself cannot be created (no folder, no permission).
class FileWriter {
 public:
  enum class Mode { kTruncate, kAppend };

  explicit FileWriter(const std::filesystem::path& path, Mode mode = Mode::kTruncate);
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(std::span<const std::byte> bytes);

  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }

  /// Asks the filesystem for space for a file of `bytes` bytes, so that a full disk is known before
  /// the first byte. Throws SystemError if there is none; does nothing where this is not supported.
  void reserve(int64_t bytes);

  /// Calls fsync, then close. A writer that is only destroyed promises nothing.
  void sync_and_close();

 private:
  std::filesystem::path path_;
  OwnedFd fd_;
};

/// Throws Error naming the path if write_file_atomic() cannot write it, because the folder is
/// missing or the path is something other than a regular file.
void check_can_write(const std::filesystem::path& path);

/// Writes `text` to `path` + ".tmp", syncs, renames over `path`, syncs the folder. A link stays
/// a link; the file that it names is written. On failure nothing is left behind.
void write_file_atomic(const std::filesystem::path& path, std::string_view text);

/// Renames, then syncs the new folder. Throws SystemError.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);

/// Makes a rename or creation inside `folder` durable.
void sync_folder(const std::filesystem::path& folder);

/// Returns the folder's entries, sorted by path; throws Error naming it if it cannot be listed.
std::vector<std::filesystem::path> list_folder(const std::filesystem::path& folder);

/// Whether the path names something that can be reached; never throws.
bool path_exists(const std::filesystem::path& path);

/// Whether the path names a folder that can be reached; never throws.
bool is_folder(const std::filesystem::path& path);

/// Creates the folder and its parents; throws Error naming the path and the reason.
void make_folders(const std::filesystem::path& folder);

/// Returns the folder for measurements of this machine: $TOKAMAK_CACHE, else
/// $XDG_CACHE_HOME/tokamak, else ~/.cache/tokamak. It need not exist.
std::filesystem::path cache_folder();

/// Returns "wanted a local path, got s3://..." with the remedy if a word of `path` has a scheme,
/// else "". s3:// and gs:// are let through where `takes_stores`.
std::string why_not_local(std::string_view path, bool takes_stores = false);

}  // namespace tokamak
