#include "tokamak/data/byte_stream.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/machine_fault.h"
#include "tokamak/data/parquet_lines.h"

namespace tokamak {
namespace {

class PlainStream final : public ByteStream {
 public:
  explicit PlainStream(std::string name) : name_(std::move(name)), fd_(open_regular_file(name_)) {}

  PlainStream(const PlainStream&) = delete;
  PlainStream& operator=(const PlainStream&) = delete;

  ~PlainStream() override { ::close(fd_); }

  size_t read(std::span<char> out) override {
    ssize_t count = 0;
    do {
      count = ::read(fd_, out.data(), out.size());
    } while (count < 0 && errno == EINTR);
    if (count < 0) throw_errno("read " + name_);
    return static_cast<size_t>(count);
  }

  void skip(int64_t count) override {
    if (::lseek(fd_, count, SEEK_CUR) < 0) throw_errno("seek " + name_);
  }

 private:
  std::string name_;
  int fd_;
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

struct GzipCloser {
  void operator()(gzFile file) const { gzclose(file); }
};

class GzipStream final : public ByteStream {
 public:
  explicit GzipStream(std::string name)
      : name_(std::move(name)), file_(gzdopen(open_regular_file(name_), "rb")) {
    if (file_ == nullptr) throw_path_errno("cannot open " + name_);
    gzbuffer(file_.get(), 1U << 17U);
    TOK_REQUIRE(gzdirect(file_.get()) == 0, "{}: wanted gzip data, got other bytes", name_);
  }

  size_t read(std::span<char> out) override {
    const int count = gzread(file_.get(), out.data(),
                             static_cast<unsigned>(std::min<size_t>(out.size(), 1U << 30U)));
    int code = Z_OK;
    const char* text = gzerror(file_.get(), &code);
    if (code == Z_ERRNO) throw_errno("read " + name_);
    TOK_REQUIRE(code != Z_BUF_ERROR, "{}: the gzip data end too early (a cut file?)", name_);
    TOK_REQUIRE(count >= 0 && code == Z_OK, "{}: broken gzip data: {}", name_, text);
    unpacked_ += count;
    refuse_bomb(name_, gzoffset(file_.get()), unpacked_);
    return static_cast<size_t>(count);
  }

 private:
  std::string name_;
  std::unique_ptr<gzFile_s, GzipCloser> file_;
  int64_t unpacked_ = 0;
};

class ZstdStream final : public ByteStream {
 public:
  explicit ZstdStream(const std::string& name)
      : name_(name), file_(name), stream_(ZSTD_createDStream()), packed_(ZSTD_DStreamInSize()) {
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
      TOK_REQUIRE(ZSTD_isError(code) == 0, "{}: broken zstd data: {}", name_,
                  ZSTD_getErrorName(code));
      frame_open_ = code != 0;
      more_inside_ = frame_open_ && unpacked.pos == unpacked.size;
    }
    unpacked_bytes_ += static_cast<int64_t>(unpacked.pos);
    refuse_bomb(name_, packed_bytes_, unpacked_bytes_);
    return unpacked.pos;
  }

 private:
  bool refill() {
    in_ = {packed_.data(), file_.read(packed_), 0};
    packed_bytes_ += static_cast<int64_t>(in_.size);
    TOK_REQUIRE(in_.size > 0 || !frame_open_, "{}: the zstd data end too early (a cut file?)",
                name_);
    return in_.size > 0;
  }

  std::string name_;
  PlainStream file_;
  ZSTD_DStream* stream_;
  std::vector<char> packed_;
  ZSTD_inBuffer in_{nullptr, 0, 0};
  int64_t packed_bytes_ = 0;
  int64_t unpacked_bytes_ = 0;
  bool frame_open_ = false;
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
  return path.extension() == ".parquet";
}

std::unique_ptr<ByteStream> open_bytes(const std::filesystem::path& path) {
  if (is_parquet(path)) return open_parquet_lines(path);
  const std::string extension = path.extension().string();
  if (extension == ".gz") return std::make_unique<GzipStream>(path.string());
  if (extension == ".zst" || extension == ".zstd") {
    return std::make_unique<ZstdStream>(path.string());
  }
  return std::make_unique<PlainStream>(path.string());
}

}  // namespace tokamak
