#include "tokamak/data/token_files.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <utility>
#include <vector>

#include <sys/stat.h>
#include <unistd.h>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/owned_fd.h"
#include "tokamak/data/file_list.h"
#include "tokamak/data/token_formats.h"

namespace tokamak {
namespace {

struct stat state_of(int fd, const std::filesystem::path& path) {
  struct stat info {};

  if (::fstat(fd, &info) != 0) throw_errno("fstat " + path.string());
  return info;
}

// An open regular file. A file that is renamed over its path changes nothing, since the one that
// was opened is read on.
class WatchedFile {
 public:
  WatchedFile() = default;

  // Throws Error naming the path if it cannot be opened.
  explicit WatchedFile(const std::filesystem::path& path)
      : path_(path), fd_(open_regular_file(path)), opened_(state_of(fd_.get(), path_)) {}

  int64_t size() const { return opened_.st_size; }

  // Fills `out` with the bytes from `first` on. Throws Error naming the path if the file has been
  // written to or cut since it was opened (its size or time of change differs), SystemError if it
  // cannot be read. REQUIRES: the bytes lay inside the file when it was opened.
  void read(int64_t first, std::span<std::byte> out) const {
    size_t done = 0;
    while (done < out.size()) {
      const ssize_t n = ::pread(fd_.get(), out.data() + done, out.size() - done,
                                first + static_cast<int64_t>(done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw_errno("read " + path_.string());
      if (n == 0) break;
      done += static_cast<size_t>(n);
    }
    check_unchanged();
    TOK_CHECK(done == out.size(), "{}: {} of {} bytes at {}", path_.string(), done, out.size(),
              first);
  }

 private:
  void check_unchanged() const {
    const struct stat now = state_of(fd_.get(), path_);
    TOK_REQUIRE(now.st_size == opened_.st_size,
                "{}: the file has {} bytes, it had {} when the run began; data must not change "
                "during a run",
                path_.string(), now.st_size, opened_.st_size);
    TOK_REQUIRE(
        now.st_mtim.tv_sec == opened_.st_mtim.tv_sec &&
            now.st_mtim.tv_nsec == opened_.st_mtim.tv_nsec,
        "{}: the file has been written to since the run began; data must not change during a run",
        path_.string());
  }

  std::filesystem::path path_;
  OwnedFd fd_;

  struct stat opened_ {};
};

namespace fs = std::filesystem;

struct Segment {
  int64_t first_token = 0;
  int64_t num_tokens = 0;
  int64_t first_byte = 0;
  size_t file = 0;
};

struct TokenFile {
  std::string name;
  TokenType type = TokenType::kU16;
  WatchedFile bytes;
};

fs::path with_extension(fs::path path, const char* extension) {
  path.replace_extension(extension);
  return path;
}

class TokenFiles final : public TokenSource {
 public:
  explicit TokenFiles(const std::string& path) : name_(path) {
    std::vector<SourceFile> files = list_files(resolve(path), is_token_file);
    for (size_t i = 0, n = files.size(); i < n; ++i) {
      open(files[i].path);
      const fs::path index = with_extension(files[i].path, ".idx");
      if (files[i].path.extension() == ".bin" && path_exists(index)) {
        const auto size = static_cast<int64_t>(fs::file_size(index));
        files.push_back({.path = index, .name = index.filename().string(), .size = size});
      }
    }
    TOK_REQUIRE(!files.empty(), "{}: no *.u16, *.u32 or *.bin token files in this folder", path);
    TOK_REQUIRE(size_ > 0, "{}: wanted tokens, got none", path);
    hash_ = hash_files(files);
  }

  int64_t wait_for(int64_t, const std::stop_token&) override { return size_; }

  std::optional<int64_t> size() override { return size_; }

  void read(int64_t first, std::span<int32_t> out) override {
    for (size_t s = segment_of(first); !out.empty(); ++s) {
      const Segment& segment = segments_[s];
      const TokenFile& file = files_[segment.file];
      const int64_t skip = first - segment.first_token;
      const auto count = std::min(static_cast<int64_t>(out.size()), segment.num_tokens - skip);
      bytes_.resize(static_cast<size_t>(count * size_of(file.type)));
      file.bytes.read(segment.first_byte + skip * size_of(file.type), bytes_);
      copy_tokens(file.type, bytes_, 0, out.first(count));
      out = out.subspan(count);
      first += count;
    }
  }

  std::string describe(int64_t index, int32_t) override {
    const Segment& segment = segments_[segment_of(index)];
    const TokenFile& file = files_[segment.file];
    const int64_t skip = index - segment.first_token;
    const int64_t byte = segment.first_byte + skip * size_of(file.type);
    std::vector<std::byte> bytes(static_cast<size_t>(size_of(file.type)));
    file.bytes.read(byte, bytes);
    return fmt::format("{}: byte {} (token {} of the stream): id {}", file.name, byte, index,
                       token_at(file.type, bytes, 0));
  }

  bool carries_tail() const override { return false; }

  const std::string& name() const override { return name_; }

  uint64_t hash() const override { return hash_; }

  std::vector<std::string> remarks() const override { return remarks_; }

 private:
  static fs::path resolve(const std::string& path) {
    fs::path bin = path + ".bin";
    if (!path_exists(path) && path_exists(bin)) return bin;
    if (fs::path(path).extension() == ".idx") return with_extension(path, ".bin");
    return path;
  }

  void open(const fs::path& path) {
    files_.push_back({.name = path.string(), .bytes = WatchedFile(path)});
    TokenFile& file = files_.back();
    const int64_t size = file.bytes.size();
    const std::string extension = path.extension().string();
    if (extension == ".u16" || extension == ".u32") {
      file.type = extension == ".u16" ? TokenType::kU16 : TokenType::kU32;
      TOK_REQUIRE(size % size_of(file.type) == 0,
                  "{}: wanted a multiple of {} bytes, got {} (a cut file?)", file.name,
                  size_of(file.type), size);
      return add(0, size / size_of(file.type));
    }
    const fs::path index_path = with_extension(path, ".idx");
    if (path_exists(index_path)) return add_megatron(index_path);
    const MappedFile whole(path);
    TOK_REQUIRE(extension == ".bin" && is_llmc_data(whole.bytes()),
                "{}: wanted *.u16, *.u32, a Megatron .bin with its .idx, or an llm.c .bin; a bare "
                "stream of ids wants the extension .u16 or .u32",
                file.name);
    const LlmcHeader header = parse_llmc_header(whole.bytes(), file.name);
    file.type = header.type;
    add(LlmcHeader::kBytes, header.num_tokens);
  }

  void add_megatron(const fs::path& index_path) {
    TokenFile& file = files_.back();
    const MappedFile bytes(index_path);
    const MegatronIndex index = parse_megatron_index(bytes.bytes(), index_path.string());
    const int64_t size = file.bytes.size();
    TOK_REQUIRE(index.bytes_needed <= size, "{}: its index wants {} bytes, got {} (a cut file?)",
                file.name, index.bytes_needed, size);
    file.type = index.type;
    for (const TokenRun& run : index.runs) add(run.first_byte, run.num_tokens);
    const int64_t held = size / size_of(index.type);
    if (index.runs.size() != 1 || index.runs[0].first_byte != 0 || index.num_tokens != held)
      remarks_.push_back(
          fmt::format("{}: its index gives {} tokens in {} runs, where the file holds {}: it is "
                      "damaged unless it "
                      "was made so",
                      file.name, index.num_tokens, index.runs.size(), held));
  }

  void add(int64_t first_byte, int64_t num_tokens) {
    if (num_tokens == 0) return;
    segments_.push_back({.first_token = size_,
                         .num_tokens = num_tokens,
                         .first_byte = first_byte,
                         .file = files_.size() - 1});
    size_ += num_tokens;
  }

  size_t segment_of(int64_t token) const {
    const auto after = std::upper_bound(
        segments_.begin(), segments_.end(), token,
        [](int64_t value, const Segment& segment) { return value < segment.first_token; });
    return static_cast<size_t>(after - segments_.begin()) - 1;
  }

  std::string name_;
  std::vector<TokenFile> files_;
  std::vector<std::byte> bytes_;  // of one read
  std::vector<Segment> segments_;
  std::vector<std::string> remarks_;
  int64_t size_ = 0;
  uint64_t hash_ = 0;
};

}  // namespace

bool is_token_file(const std::string& name) {
  const std::string extension = fs::path(name).extension().string();
  return extension == ".u16" || extension == ".u32" || extension == ".bin";
}

std::unique_ptr<TokenSource> open_token_files(const std::string& path) {
  return std::make_unique<TokenFiles>(path);
}

}  // namespace tokamak
