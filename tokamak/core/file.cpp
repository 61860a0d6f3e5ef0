#include "tokamak/core/file.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tokamak/core/bus_error.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file_call.h"
#include "tokamak/core/host.h"
#include "tokamak/core/names.h"

namespace tokamak {
namespace {

OwnedFd open_to_read(const std::filesystem::path& path) {
  OwnedFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) throw_path_errno("cannot open " + path.string());
  return file;
}

size_t size_of_regular(int fd, const std::filesystem::path& path) {
  struct stat info {};

  if (::fstat(fd, &info) != 0) throw_errno("fstat " + path.string());
  TOK_REQUIRE(S_ISREG(info.st_mode), "cannot read {}: not a regular file", path.string());
  return static_cast<size_t>(info.st_size);
}

// Reads from the front, at most `bytes`.
std::string read_some(int fd, size_t bytes, const std::filesystem::path& path) {
  std::string text(bytes, '\0');
  for (size_t at = 0; at < text.size();) {
    const ssize_t n = ::read(fd, text.data() + at, text.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_errno("read " + path.string());
    if (n == 0) text.resize(at);
    at += n;
  }
  return text;
}

void throw_if(const std::error_code& code, const std::string& what) {
  if (!code) return;
  errno = code.value();
  throw_path_errno(what);
}

}  // namespace

OwnedFd open_regular_file(const std::filesystem::path& path) {
  OwnedFd file = open_to_read(path);
  size_of_regular(file.get(), path);
  return file;
}

namespace {

// Git without its extension LFS checks out a pointer in place of each large file.
void refuse_lfs_pointer(std::string_view text, const std::filesystem::path& path) {
  TOK_REQUIRE(text.size() > 512 || !text.starts_with("version https://git-lfs."),
              "{}: a pointer of Git LFS, not the file itself; fetch the file with: git lfs pull",
              path.string());
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  const OwnedFd file = open_to_read(path);
  size_ = size_of_regular(file.get(), path);
  if (size_ == 0) return;
  void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (mapped == MAP_FAILED) throw_errno("mmap " + path.string());
  data_ = static_cast<const std::byte*>(mapped);
  remember_mapping(bytes(), path.c_str());
  refuse_lfs_pointer(text(), path);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  forget_mapping(bytes());
  ::munmap(const_cast<std::byte*>(data_), size_);
}

std::string read_file(const std::filesystem::path& path, int64_t most_bytes) {
  const OwnedFd file = open_to_read(path);
  const size_t size = size_of_regular(file.get(), path);
  TOK_REQUIRE(static_cast<int64_t>(size) <= most_bytes, "{}: {} bytes, wanted at most {}",
              path.string(), size, most_bytes);
  return read_some(file.get(), size, path);
}

std::string read_front(const std::filesystem::path& path, int64_t bytes) {
  const OwnedFd file = open_regular_file(path);
  return read_some(file.get(), static_cast<size_t>(bytes), path);
}

FileWriter::FileWriter(const std::filesystem::path& path, Mode mode) : path_(path) {
  const FileCall call("open", path_);
  const int flags = O_WRONLY | O_CREAT | O_CLOEXEC | (mode == Mode::kTruncate ? O_TRUNC : O_APPEND);
  fd_ = OwnedFd(::open(path.c_str(), flags, 0644));
  if (fd_.get() < 0) throw_path_errno("cannot write " + path.string());
}

namespace {

constexpr int64_t kMostOfCall = int64_t{16} << 20;

// Lets the disk begin with what was written last and waits for some parts before, so that the fsync
// at the end, one call, need not wait for all of a large file.
void sync_on_the_way(int fd) {
  constexpr int64_t kBehind = 8 * kMostOfCall;
  const off_t end = ::lseek(fd, 0, SEEK_CUR);
  ::sync_file_range(fd, end - kMostOfCall, kMostOfCall, SYNC_FILE_RANGE_WRITE);
  if (end < kBehind) return;
  ::sync_file_range(
      fd, end - kBehind, kMostOfCall,
      SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
}

}  // namespace

// In parts, each of which a slow disk can do in the time that a call may take.
void FileWriter::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const FileCall call("write", path_);
    const ssize_t n =
        ::write(fd_.get(), bytes.data(), std::min(bytes.size(), static_cast<size_t>(kMostOfCall)));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_errno("write " + path_.string());
    bytes = bytes.subspan(n);
    if (n == kMostOfCall) sync_on_the_way(fd_.get());
  }
}

void FileWriter::reserve(int64_t bytes) {
  if (bytes <= 0 || ::fallocate(fd_.get(), FALLOC_FL_KEEP_SIZE, 0, bytes) == 0) return;
  if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) {
    throw_errno(fmt::format("room for {} bytes in {}", bytes, path_.string()));
  }
}

void FileWriter::sync_and_close() {
  const FileCall call("fsync", path_);
  if (::fsync(fd_.get()) != 0) throw_errno("fsync " + path_.string());
  if (::close(fd_.release()) != 0) throw_errno("close " + path_.string());
}

void check_can_write(const std::filesystem::path& path) {
  const std::filesystem::path folder = path.parent_path();
  const std::string scheme = why_not_local(path.string());
  TOK_REQUIRE(scheme.empty(), "cannot write {}: {}", path.string(), scheme);
  TOK_REQUIRE(path.has_filename(), "cannot write \"{}\": wanted the name of a file", path.string());
  TOK_REQUIRE(folder.empty() || is_folder(folder), "cannot write {}: there is no folder {}",
              path.string(), folder.string());
  std::error_code ignored;
  const auto there = std::filesystem::status(path, ignored).type();
  TOK_REQUIRE(there != std::filesystem::file_type::directory, "cannot write {}: it is a folder",
              path.string());
  TOK_REQUIRE(there == std::filesystem::file_type::regular ||
                  there == std::filesystem::file_type::not_found,
              "cannot write {}: not a regular file", path.string());
}

void write_file_atomic(const std::filesystem::path& path, std::string_view text) {
  check_can_write(path);
  std::error_code ignored;
  const bool is_link = std::filesystem::is_symlink(path, ignored) && path_exists(path);
  const std::filesystem::path target = is_link ? std::filesystem::canonical(path) : path;
  std::filesystem::path aside = target;
  aside += ".tmp";
  try {
    FileWriter file(aside);
    file.write(text);
    file.sync_and_close();
    rename_durably(aside, target);
  } catch (...) {
    std::filesystem::remove(aside, ignored);
    throw;
  }
}

void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to) {
  {
    const FileCall call("rename", from);
    if (::rename(from.c_str(), to.c_str()) != 0) throw_errno("rename " + from.string());
  }
  sync_folder(to.parent_path());
}

void sync_folder(const std::filesystem::path& folder) {
  const std::filesystem::path shown = folder.empty() ? "." : folder;
  const FileCall call("fsync", shown);
  const OwnedFd file(::open(shown.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (file.get() < 0 || ::fsync(file.get()) != 0) throw_errno("fsync " + shown.string());
}

std::vector<std::filesystem::path> list_folder(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  std::error_code code;
  std::filesystem::directory_iterator entry(folder, code);
  for (; !code && entry != std::filesystem::directory_iterator(); entry.increment(code)) {
    paths.push_back(entry->path());
  }
  throw_if(code, "cannot list folder " + folder.string());
  std::ranges::sort(paths);
  return paths;
}

bool path_exists(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

bool is_folder(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

void make_folders(const std::filesystem::path& folder) {
  std::error_code code;
  std::filesystem::create_directories(folder, code);
  throw_if(code, "cannot create folder " + folder.string());
  TOK_REQUIRE(std::filesystem::is_directory(folder),
              "cannot create folder {}: a file is in the way", folder.string());
}

std::filesystem::path cache_folder() {
  const auto path_in = [](const char* name) -> std::filesystem::path {
    return environment_variable(name);
  };
  if (auto own = path_in("TOKAMAK_CACHE"); !own.empty()) {
    const std::string scheme = why_not_local(own.string());
    TOK_REQUIRE(scheme.empty(), "TOKAMAK_CACHE: {}", scheme);
    return own;
  }
  if (const auto shared = path_in("XDG_CACHE_HOME"); !shared.empty()) return shared / "tokamak";
  const auto home = path_in("HOME");
  return (home.empty() ? "." : home) / ".cache" / "tokamak";
}

std::string why_not_local(std::string_view path, bool takes_stores) {
  for (size_t at = path.find("://"); at != std::string_view::npos; at = path.find("://", at + 1)) {
    const size_t blank = path.find_last_of(" \t", at);
    const size_t begin = blank == std::string_view::npos ? 0 : blank + 1;
    const std::string scheme = lower_case(path.substr(begin, at - begin));
    constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789+.-";
    const bool is_store = scheme == "s3" || scheme == "gs";
    if (is_store && takes_stores) continue;
    if (scheme.empty() || scheme.find_first_not_of(kLetters) != std::string::npos) continue;
    const std::string remedy =
        scheme == "file" ? "leave out file://"
        : scheme == "hf" ? "tokamak download fetches a repository of the Hugging Face hub, and a "
                           "dataset_path may be hf:OWNER/NAME#FOLDER"
                         : "copy the files to this machine, or mount them";
    return fmt::format("wanted a local path, got {}: {}:// is not {}; {}",
                       printable(path.substr(begin)), scheme, is_store ? "read here" : "built",
                       remedy);
  }
  return "";
}

}  // namespace tokamak
