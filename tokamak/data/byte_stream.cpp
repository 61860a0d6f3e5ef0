#include "tokamak/data/byte_stream.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include <zlib.h>
#include <zstd.h>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/names.h"
#include "tokamak/data/parquet_lines.h"

namespace tokamak {
namespace {

class PlainStream final : public ByteStream {
 public:
  explicit PlainStream(std::unique_ptr<RandomFile> file) : file_(std::move(file)) {}

  size_t read(std::span<char> out) override {
    const auto count = std::min(std::ssize(out), file_->size() - at_);
    if (count <= 0) return 0;
    file_->read_at(at_, std::as_writable_bytes(out.first(static_cast<size_t>(count))));
    at_ += count;
    return static_cast<size_t>(count);
  }

  void skip(int64_t count) override { at_ += count; }

 private:
  std::unique_ptr<RandomFile> file_;
  int64_t at_ = 0;
};

// Reads a file far away in blocks large enough to outweigh the time of a request, one ahead.
class FarStream final : public ByteStream {
 public:
  explicit FarStream(std::unique_ptr<RandomFile> file) : file_(std::move(file)) {}

  size_t read(std::span<char> out) override {
    if (at_ >= file_->size() || out.empty()) return 0;
    if (at_ < begin_ || at_ >= begin_ + std::ssize(block_)) take_block();
    const auto inside = static_cast<size_t>(at_ - begin_);
    const size_t count = std::min(out.size(), block_.size() - inside);
    std::memcpy(out.data(), block_.data() + inside, count);
    at_ += static_cast<int64_t>(count);
    return count;
  }

  void skip(int64_t count) override { at_ += count; }

 private:
  static constexpr int64_t kBlock = int64_t{4} << 20;

  void take_block() {
    if (next_.valid()) {
      std::vector<char> read = next_.get();
      if (at_ == next_begin_) {
        begin_ = next_begin_;
        block_ = std::move(read);
        return start_next();
      }
    }
    begin_ = at_;
    block_ = block_at(at_);
    start_next();
  }

  std::vector<char> block_at(int64_t begin) {
    std::vector<char> block(static_cast<size_t>(std::min(kBlock, file_->size() - begin)));
    file_->read_at(begin, std::as_writable_bytes(std::span(block)));
    return block;
  }

  void start_next() {
    next_begin_ = begin_ + std::ssize(block_);
    if (next_begin_ >= file_->size()) return;
    next_ = std::async(std::launch::async, [this, begin = next_begin_] { return block_at(begin); });
  }

  std::unique_ptr<RandomFile> file_;
  int64_t at_ = 0;
  int64_t begin_ = 0;
  std::vector<char> block_;
  int64_t next_begin_ = 0;
  std::future<std::vector<char>> next_;  // last: its end waits for a read of the file
};

// Text packs 3 to 20 times; what unpacks to this many times its size is made to fill a disk or an
// afternoon.
constexpr int64_t kMostTimes = 200;
constexpr int64_t kFreeBytes = int64_t{64} << 20;

void refuse_bomb(const std::string& name, int64_t packed, int64_t unpacked) {
  TOK_REQUIRE(unpacked <= kFreeBytes || unpacked / kMostTimes <= packed,
              "{}: {} bytes unpack to {} and more, wanted at most {} times as many", name, packed,
              unpacked, kMostTimes);
}

// The bytes of a packed file, counted before and after they are unpacked.
class PackedFile {
 public:
  PackedFile(std::string name, std::unique_ptr<ByteStream> file, const char* format)
      : name_(std::move(name)), format_(format), file_(std::move(file)), bytes_(size_t{1} << 17) {}

  const std::string& name() const { return name_; }

  /// Returns the next bytes, none at the end of the file, where `is_inside` throws.
  std::span<char> next(bool is_inside) {
    const size_t count = file_->read(bytes_);
    packed_ += static_cast<int64_t>(count);
    TOK_REQUIRE(count > 0 || !is_inside, "{}: the {} data end too early (a cut file?)", name_,
                format_);
    return std::span(bytes_).first(count);
  }

  size_t unpacked(size_t count) {
    unpacked_ += static_cast<int64_t>(count);
    refuse_bomb(name_, packed_, unpacked_);
    return count;
  }

 private:
  std::string name_;
  const char* format_;
  std::unique_ptr<ByteStream> file_;
  std::vector<char> bytes_;
  int64_t packed_ = 0;
  int64_t unpacked_ = 0;
};

// Members one after another, and zeros after any of them, as tapes have them. zlib's gzread() takes
// a member with a damaged front for the end of the data.
class GzipStream final : public ByteStream {
 public:
  GzipStream(std::string name, std::unique_ptr<ByteStream> file)
      : file_(std::move(name), std::move(file), "gzip") {
    constexpr int kGzipOnly = 16;
    TOK_CHECK(inflateInit2(&stream_, kGzipOnly + MAX_WBITS) == Z_OK);
  }

  GzipStream(const GzipStream&) = delete;
  GzipStream& operator=(const GzipStream&) = delete;

  ~GzipStream() override { inflateEnd(&stream_); }

  size_t read(std::span<char> out) override {
    const auto room = static_cast<unsigned>(std::min<size_t>(out.size(), 1U << 30U));
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = room;
    while (stream_.avail_out == room) {
      if (stream_.avail_in == 0 && !refill()) return 0;
      if (is_inside_ || next_member()) unpack();
    }
    return file_.unpacked(room - stream_.avail_out);
  }

 private:
  bool refill() {
    const std::span<char> bytes = file_.next(is_inside_);
    stream_.next_in = reinterpret_cast<Bytef*>(bytes.data());
    stream_.avail_in = static_cast<unsigned>(bytes.size());
    return !bytes.empty();
  }

  bool next_member() {
    for (; stream_.avail_in > 0 && *stream_.next_in == 0; --stream_.avail_in) ++stream_.next_in;
    if (stream_.avail_in == 0) return false;
    inflateReset(&stream_);
    is_first_ = false;
    return is_inside_ = true;
  }

  void unpack() {
    const int code = inflate(&stream_, Z_NO_FLUSH);
    TOK_CHECK(code != Z_MEM_ERROR && code != Z_STREAM_ERROR);
    if (code == Z_DATA_ERROR) {
      const std::string_view reason = stream_.msg == nullptr ? "" : stream_.msg;
      TOK_REQUIRE(!is_first_ || reason != "incorrect header check",
                  "{}: wanted gzip data, got other bytes", file_.name());
      fail("{}: broken gzip data: {}", file_.name(), reason);
    }
    is_inside_ = code != Z_STREAM_END;
  }

  PackedFile file_;
  z_stream stream_{};
  bool is_inside_ = true;
  bool is_first_ = true;
};

class ZstdStream final : public ByteStream {
 public:
  ZstdStream(std::string name, std::unique_ptr<ByteStream> file)
      : file_(std::move(name), std::move(file), "zstd"), stream_(ZSTD_createDStream()) {
    TOK_CHECK(stream_ != nullptr);
  }

  ZstdStream(const ZstdStream&) = delete;
  ZstdStream& operator=(const ZstdStream&) = delete;

  ~ZstdStream() override { ZSTD_freeDStream(stream_); }

  size_t read(std::span<char> out) override {
    ZSTD_outBuffer unpacked{out.data(), out.size(), 0};
    while (unpacked.pos == 0) {
      if (in_.pos == in_.size && !more_inside_ && !refill()) return 0;
      const size_t code = ZSTD_decompressStream(stream_, &unpacked, &in_);
      TOK_REQUIRE(ZSTD_isError(code) == 0, "{}: broken zstd data: {}", file_.name(),
                  ZSTD_getErrorName(code));
      is_inside_ = code != 0;
      more_inside_ = is_inside_ && unpacked.pos == unpacked.size;
    }
    return file_.unpacked(unpacked.pos);
  }

 private:
  bool refill() {
    const std::span<char> bytes = file_.next(is_inside_);
    in_ = {bytes.data(), bytes.size(), 0};
    return !bytes.empty();
  }

  PackedFile file_;
  ZSTD_DStream* stream_;
  ZSTD_inBuffer in_{nullptr, 0, 0};
  bool is_inside_ = true;
  bool more_inside_ = false;
};

}  // namespace

void ByteStream::skip(int64_t count) {
  std::vector<char> dropped(std::min<int64_t>(count, 1 << 18));
  while (count > 0) {
    const size_t want = std::min(dropped.size(), static_cast<size_t>(count));
    const size_t got = read(std::span(dropped).first(want));
    TOK_REQUIRE(got > 0, "data file is {} bytes shorter than it was when its cache was begun",
                count);
    count -= static_cast<int64_t>(got);
  }
}

bool is_parquet(const std::filesystem::path& path) {
  return lower_case(path.extension().string()) == ".parquet";
}

bool is_packed(const std::filesystem::path& path) {
  const std::string extension = lower_case(path.extension().string());
  return extension == ".gz" || extension == ".zst" || extension == ".zstd" || is_parquet(path);
}

std::unique_ptr<ByteStream> open_bytes(std::unique_ptr<RandomFile> file,
                                       const std::string& text_column, bool is_far) {
  std::string name = file->name();
  const std::filesystem::path path(name);
  if (is_parquet(path)) return open_parquet_lines(std::move(file), text_column);
  std::unique_ptr<ByteStream> bytes;
  if (is_far) {
    bytes = std::make_unique<FarStream>(std::move(file));
  } else {
    bytes = std::make_unique<PlainStream>(std::move(file));
  }
  if (!is_packed(path)) return bytes;
  if (lower_case(path.extension().string()) == ".gz")
    return std::make_unique<GzipStream>(std::move(name), std::move(bytes));
  return std::make_unique<ZstdStream>(std::move(name), std::move(bytes));
}

std::unique_ptr<ByteStream> open_bytes(const std::filesystem::path& path,
                                       const std::string& text_column) {
  return open_bytes(open_local_file(path), text_column);
}

}  // namespace tokamak
