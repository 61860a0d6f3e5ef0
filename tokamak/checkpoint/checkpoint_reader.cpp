#include "tokamak/checkpoint/checkpoint_reader.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <system_error>
#include <unordered_map>

#include <fcntl.h>
#include <unistd.h>

#include "tokamak/checkpoint/formats/outside_name.h"
#include "tokamak/checkpoint/formats/safetensors.h"
#include "tokamak/checkpoint/manifest.h"
#include "tokamak/core/chunk_hash.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/file_call.h"
#include "tokamak/core/in_parallel.h"
#include "tokamak/core/owned_fd.h"

namespace tokamak {
namespace fs = std::filesystem;

namespace {

// Throws Error, which begins with `what`, unless each piece of the shard, whose content is
// `bytes`, lies where the shard's own header has an entry of its name, element type and length.
// The seal does not show that: whoever writes a manifest can seal it.
void check_pieces(const ShardSummary& shard, std::span<const std::byte> bytes,
                  const std::map<std::string, TensorType>& tensors, const std::string& what) {
  const SafetensorsHeader header = parse_safetensors_header(bytes, std::ssize(bytes), what);
  std::unordered_map<std::string_view, const SafetensorsEntry*> entries;
  for (const SafetensorsEntry& entry : header.entries) entries.emplace(entry.name, &entry);
  for (const ShardPiece& piece : shard.pieces) {
    const TensorType& type = tensors.at(piece.tensor);
    const std::string name = entry_name(piece.tensor, piece.slice, type.dims);
    const auto found = entries.find(name);
    TOK_REQUIRE(found != entries.end(), "{}: the manifest has a piece {}, the shard has none", what,
                shown(name));
    const SafetensorsEntry& entry = *found->second;
    const int64_t end = piece.offset + piece.slice.numel() * size_of(type.dtype);
    TOK_REQUIRE(entry.dtype == type.dtype && entry.begin == piece.offset && entry.end == end,
                "{}: piece {} is {} at bytes {} to {}, the manifest says {} at {} to {}", what,
                shown(name), name_of(entry.dtype), entry.begin, entry.end, name_of(type.dtype),
                piece.offset, end);
  }
}

// A block of a shard: large enough that a disk works on many of its pages at once.
constexpr int64_t kBlockBytes = int64_t{16} << 20;

// An open file. A mapping would end the process where the disk fails.
class Input {
 public:
  Input(const fs::path& path, bool is_direct) : path_(path) {
    constexpr int kFlags = O_RDONLY | O_CLOEXEC;
    if (is_direct) fd_ = OwnedFd(::open(path.c_str(), kFlags | O_DIRECT));
    if (!is_direct || (fd_.get() < 0 && errno == EINVAL))
      fd_ = OwnedFd(::open(path.c_str(), kFlags));
    if (fd_.get() < 0) throw_path_errno("cannot open " + path.string());
  }

  // Fills `out` with the bytes from `first` on. Memory up to the next multiple of kBlockAlignment
  // may be written. Throws Damaged where the disk has lost them.
  void read(int64_t first, std::span<std::byte> out) const {
    const auto most = (out.size() + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
    for (size_t at = 0; at < out.size();) {
      const FileCall call("read", path_);
      const ssize_t n =
          ::pread(fd_.get(), out.data() + at, most - at, first + static_cast<int64_t>(at));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EINVAL && leave_direct()) continue;
      if (n < 0 && errno != EIO) throw_errno("read " + path_.string());
      if (n <= 0) {
        throw Damaged(fmt::format("{}: damaged: {} bytes at offset {} cannot be read: {}",
                                  path_.string(), out.size() - at, first + static_cast<int64_t>(at),
                                  n < 0 ? std::strerror(errno) : "the file has shrunk"));
      }
      at += static_cast<size_t>(n);
      if (at < out.size() && at % kBlockAlignment != 0) leave_direct();
    }
  }

 private:
  // Returns false where the page cache is in use already.
  bool leave_direct() const {
    const int flags = ::fcntl(fd_.get(), F_GETFL);
    return flags >= 0 && (flags & O_DIRECT) != 0 &&
           ::fcntl(fd_.get(), F_SETFL, flags & ~O_DIRECT) == 0;
  }

  const fs::path& path_;
  OwnedFd fd_;
};

Manifest manifest_of(const fs::path& folder) {
  const fs::path path = folder / kManifestFile;
  std::error_code code;
  const auto size = fs::file_size(path, code);
  if (code == std::errc::no_such_file_or_directory) {
    throw Damaged(
        fmt::format("{}: not a checkpoint: there is no {}", folder.string(), kManifestFile));
  }
  if (code) {
    errno = code.value();
    throw_path_errno("cannot open " + path.string());
  }
  BlockMemory memory(static_cast<int64_t>(size));
  const std::span text(memory.data(), size);
  Input(path, false).read(0, text);
  try {
    return parse_manifest({reinterpret_cast<const char*>(text.data()), text.size()}, path.string());
  } catch (const Error& error) {
    throw Damaged(error.what());
  }
}

}  // namespace

CheckpointReader::CheckpointReader(const fs::path& folder)
    : folder_(folder), manifest_(manifest_of(folder)) {
  for (const ShardSummary& summary : manifest_.shards) {
    const fs::path path = folder / summary.file;
    if (!path_exists(path))
      throw Damaged(fmt::format("{}: shard {} is absent", folder.string(), summary.file));
    std::error_code code;
    const auto size = static_cast<int64_t>(fs::file_size(path, code));
    if (code) {
      errno = code.value();
      throw_path_errno("cannot open " + path.string());
    }
    if (size != summary.file_bytes) {
      throw Damaged(fmt::format("{}: damaged: {} bytes, the manifest says {}", path.string(), size,
                                summary.file_bytes));
    }
  }
  for (size_t s = 0; s < manifest_.shards.size(); ++s) {
    const auto& pieces = manifest_.shards[s].pieces;
    for (size_t p = 0; p < pieces.size(); ++p) {
      parts_[pieces[p].tensor].push_back({.shard = s, .piece = p});
    }
  }
}

const TensorType* CheckpointReader::find(const std::string& tensor) const {
  const auto it = manifest_.tensors.find(tensor);
  return it == manifest_.tensors.end() ? nullptr : &it->second;
}

const TensorType& CheckpointReader::type_of(const std::string& tensor) const {
  const TensorType* type = find(tensor);
  TOK_REQUIRE(type != nullptr, "{}: there is no tensor {}", folder_.string(), shown(tensor));
  return *type;
}

const std::string& CheckpointReader::section(const std::string& name) const {
  const auto it = manifest_.info.sections.find(name);
  TOK_REQUIRE(it != manifest_.info.sections.end(), "{}: the checkpoint has no section {}",
              folder_.string(), shown(name));
  return it->second;
}

std::string CheckpointReader::tensors_in(size_t shard, int64_t begin, int64_t end) const {
  std::vector<std::string> names;
  for (const ShardPiece& piece : manifest_.shards[shard].pieces) {
    const int64_t bytes = piece.slice.numel() * size_of(type_of(piece.tensor).dtype);
    if (piece.offset < end && begin < piece.offset + bytes) names.push_back(shown(piece.tensor));
  }
  if (names.empty()) return "the file's header";
  return names.size() == 1 ? names[0] : fmt::format("{} and {} more", names[0], names.size() - 1);
}

// Reads the chunks that hold the bytes, at most a block of them, and checks them.
void CheckpointReader::fill(ReadWindow& window, size_t shard, int64_t begin, int64_t bytes) const {
  const ShardSummary& summary = manifest_.shards[shard];
  const int64_t width = summary.chunk_bytes;
  const int64_t most = std::max<int64_t>(1, kBlockBytes / width);
  const int64_t first = begin / width;
  const int64_t end = std::min((begin + bytes + width - 1) / width, first + most);
  const fs::path path = folder_ / summary.file;
  const int64_t at = first * width;
  const int64_t count = std::min(end * width, summary.file_bytes) - at;
  window.begin_ = window.end_ = 0;
  if (window.memory_.bytes() < count) window.memory_ = BlockMemory(count);
  const std::span block(window.memory_.data(), static_cast<size_t>(count));
  const bool is_direct = window.is_direct_ && width % kBlockAlignment == 0;
  Input(path, is_direct).read(at, block);
  for (int64_t chunk = first; chunk < end; ++chunk) {
    const int64_t from = chunk * width;
    const int64_t size = std::min(summary.file_bytes - from, width);
    if (hash_of(block.subspan(from - at, size)) == summary.hashes[chunk]) continue;
    throw Damaged(fmt::format("{}: damaged: the hash of the {} bytes at offset {} is wrong ({})",
                              path.string(), size, from, tensors_in(shard, from, from + size)));
  }
  window.shard_ = shard;
  window.begin_ = at;
  window.end_ = at + count;
}

// Returns the bytes from `begin` on, at most `bytes` and at least one of them.
std::span<const std::byte> CheckpointReader::checked_bytes_at(ReadWindow& window, size_t shard,
                                                              int64_t begin, int64_t bytes) const {
  const bool holds = window.shard_ == shard && window.begin_ <= begin && begin < window.end_;
  if (!holds) fill(window, shard, begin, bytes);
  const int64_t count = std::min(bytes, window.end_ - begin);
  return {window.memory_.data() + (begin - window.begin_), static_cast<size_t>(count)};
}

void CheckpointReader::check_slice(const TensorType& type, const std::string& tensor,
                                   const Slice& slice) const {
  const std::string problem = slice_problem(slice, type.dims);
  TOK_REQUIRE(problem.empty(), "{}: tensor {}: {}", folder_.string(), shown(tensor), problem);
}

void CheckpointReader::stream(
    const std::string& tensor, const Slice& slice, ReadWindow& window,
    const std::function<void(int64_t, std::span<const std::byte>)>& sink) const {
  const TensorType& type = type_of(tensor);
  check_slice(type, tensor, slice);
  const int64_t width = size_of(type.dtype);
  const auto parts = parts_.find(tensor);
  if (slice.numel() == 0 || parts == parts_.end()) return;
  for (const Part& part : parts->second) {
    const ShardPiece& piece = manifest_.shards[part.shard].pieces[part.piece];
    for_each_shared_run(piece.slice, slice, [&](int64_t from, int64_t to, int64_t count) {
      const int64_t bytes = count * width;
      for (int64_t done = 0; done < bytes;) {
        const auto run =
            checked_bytes_at(window, part.shard, piece.offset + from * width + done, bytes - done);
        sink(to * width + done, run);
        done += std::ssize(run);
      }
    });
  }
}

ShardPlace CheckpointReader::place_of(const std::string& tensor, const Slice& slice) const {
  const TensorType& type = type_of(tensor);
  check_slice(type, tensor, slice);
  Slice first = slice;
  first.end = first.begin + 1;
  ShardPlace place;
  for (const Part& part : parts_.at(tensor)) {
    const ShardPiece& piece = manifest_.shards[part.shard].pieces[part.piece];
    for_each_shared_run(piece.slice, first, [&](int64_t from, int64_t, int64_t) {
      place = {.shard = part.shard, .offset = piece.offset + from * size_of(type.dtype)};
    });
  }
  return place;
}

void CheckpointReader::read(const std::string& tensor, const Slice& slice,
                            std::span<std::byte> out) const {
  ReadWindow window;
  read(tensor, slice, out, window);
}

void CheckpointReader::read(const std::string& tensor, const Slice& slice, std::span<std::byte> out,
                            ReadWindow& window) const {
  const TensorType& type = type_of(tensor);
  check_slice(type, tensor, slice);
  TOK_CHECK(std::ssize(out) == slice.numel() * size_of(type.dtype),
            "{}: {} bytes for {} elements of {}", tensor, out.size(), slice.numel(),
            name_of(type.dtype));
  stream(tensor, slice, window, [&](int64_t at, std::span<const std::byte> bytes) {
    std::memcpy(out.data() + at, bytes.data(), bytes.size());
  });
}

// A source is mostly read in order, by one thread.
TensorSource CheckpointReader::source(const std::string& tensor) const {
  struct Shared {
    std::mutex mutex;
    ReadWindow window;
  };

  const TensorType type = type_of(tensor);
  const auto read_part = [this, tensor, type, shared = std::make_shared<Shared>()](
                             int64_t first, std::span<std::byte> out) {
    const int64_t count = std::ssize(out) / size_of(type.dtype);
    const Slice slice{.box = whole_box(type.dims), .begin = first, .end = first + count};
    const std::unique_lock lock(shared->mutex, std::try_to_lock);
    ReadWindow own;
    read(tensor, slice, out, lock.owns_lock() ? shared->window : own);
  };
  return {.name = tensor, .dtype = type.dtype, .dims = type.dims, .read = read_part};
}

void CheckpointReader::verify(int member, int members, int num_threads) const {
  struct Run {
    size_t shard = 0;
    int64_t begin = 0;
    int64_t bytes = 0;
  };

  std::vector<Run> runs;
  int64_t number = 0;
  for (size_t s = 0; s < manifest_.shards.size(); ++s) {
    const ShardSummary& shard = manifest_.shards[s];
    const int64_t unit = shard.chunk_bytes * std::max<int64_t>(1, kBlockBytes / shard.chunk_bytes);
    for (int64_t at = 0; at < shard.file_bytes; at += unit) {
      if (number++ % members != member) continue;
      runs.push_back({.shard = s, .begin = at, .bytes = std::min(unit, shard.file_bytes - at)});
    }
  }
  in_parallel(runs.size(), num_threads, [&](size_t r) {
    ReadWindow window(true);
    fill(window, runs[r].shard, runs[r].begin, runs[r].bytes);
  });
}

void CheckpointReader::check_headers() const {
  for (size_t s = 0; s < manifest_.shards.size(); ++s) {
    const ShardSummary& shard = manifest_.shards[s];
    ReadWindow window;
    uint64_t length = 0;
    const auto front =
        checked_bytes_at(window, s, 0, std::min<int64_t>(shard.file_bytes, sizeof length));
    std::memcpy(&length, front.data(), front.size());
    const auto rest = static_cast<uint64_t>(shard.file_bytes) - front.size();
    const int64_t end = std::ssize(front) + static_cast<int64_t>(std::min(length, rest));
    for (int64_t at = 0; at < end;) at += std::ssize(checked_bytes_at(window, s, at, end - at));
    const MappedFile file(folder_ / shard.file);
    check_pieces(shard, file.bytes(), manifest_.tensors, (folder_ / shard.file).string());
  }
}

}  // namespace tokamak
