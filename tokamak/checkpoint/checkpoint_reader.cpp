#include "tokamak/checkpoint/checkpoint_reader.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

#include "tokamak/checkpoint/chunk_hash.h"
#include "tokamak/checkpoint/formats/outside_name.h"
#include "tokamak/checkpoint/shard_check.h"
#include "tokamak/core/error.h"
#include "tokamak/core/in_parallel.h"
#include "tokamak/core/machine_fault.h"

namespace tokamak {
namespace fs = std::filesystem;

namespace {

// Reads part of a file. A mapping would end the process where the disk fails.
std::vector<std::byte> bytes_at(const fs::path& path, int64_t first, size_t count) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw_path_errno("cannot open " + path.string());
  std::vector<std::byte> bytes(count);
  ssize_t n = 1;
  for (size_t at = 0; at < count && n != 0;) {
    n = ::pread(fd, bytes.data() + at, count - at, first + static_cast<int64_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) break;
    at += n;
  }
  const int code = errno;
  ::close(fd);
  errno = code;
  if (n < 0 && errno != EIO) throw_errno("read " + path.string());
  if (n <= 0) {
    throw Damaged(fmt::format("{}: damaged: {} bytes at offset {} cannot be read: {}",
                              path.string(), count, first,
                              n < 0 ? std::strerror(errno) : "the file has shrunk"));
  }
  return bytes;
}

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
  const auto text = bytes_at(path, 0, size);
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
    MappedFile file(path);
    if (std::ssize(file.bytes()) != summary.file_bytes) {
      throw Damaged(fmt::format("{}: damaged: {} bytes, the manifest says {}", path.string(),
                                file.bytes().size(), summary.file_bytes));
    }
    shards_.push_back({.file = std::move(file),
                       .verified = std::vector<std::atomic<bool>>(summary.hashes.size())});
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

void CheckpointReader::check_chunk(size_t shard, int64_t chunk) const {
  auto& verified = shards_[shard].verified[chunk];
  if (verified.load(std::memory_order_relaxed)) return;
  const ShardSummary& summary = manifest_.shards[shard];
  const int64_t first = chunk * summary.chunk_bytes;
  const int64_t count = std::min(summary.file_bytes - first, summary.chunk_bytes);
  const fs::path path = folder_ / summary.file;
  const auto content = bytes_at(path, first, static_cast<size_t>(count));
  if (hash_of(content) != summary.hashes[chunk]) {
    throw Damaged(fmt::format("{}: damaged: the hash of the {} bytes at offset {} is wrong ({})",
                              path.string(), count, first,
                              tensors_in(shard, first, first + count)));
  }
  verified.store(true, std::memory_order_relaxed);
}

std::span<const std::byte> CheckpointReader::checked_bytes_at(size_t shard, int64_t begin,
                                                              int64_t bytes) const {
  const int64_t width = manifest_.shards[shard].chunk_bytes;
  for (int64_t chunk = begin / width; chunk * width < begin + bytes; ++chunk)
    check_chunk(shard, chunk);
  return shards_[shard].file.bytes().subspan(begin, bytes);
}

void CheckpointReader::read(const std::string& tensor, const Slice& slice,
                            std::span<std::byte> out) const {
  const TensorType& type = type_of(tensor);
  const std::string problem = slice_problem(slice, type.dims);
  TOK_REQUIRE(problem.empty(), "{}: tensor {}: {}", folder_.string(), shown(tensor), problem);
  const int64_t width = size_of(type.dtype);
  TOK_CHECK(std::ssize(out) == slice.numel() * width, "{}: {} bytes for {} elements of {}", tensor,
            out.size(), slice.numel(), name_of(type.dtype));
  const auto parts = parts_.find(tensor);
  if (out.empty() || parts == parts_.end()) return;
  for (const Part& part : parts->second) {
    const ShardPiece& piece = manifest_.shards[part.shard].pieces[part.piece];
    for_each_shared_run(piece.slice, slice, [&](int64_t from, int64_t to, int64_t count) {
      const auto bytes = checked_bytes_at(part.shard, piece.offset + from * width, count * width);
      std::memcpy(out.data() + to * width, bytes.data(), bytes.size());
    });
  }
}

TensorSource CheckpointReader::source(const std::string& tensor) const {
  const TensorType type = type_of(tensor);
  const auto read_part = [this, tensor, type](int64_t first, std::span<std::byte> out) {
    const int64_t count = std::ssize(out) / size_of(type.dtype);
    read(tensor, {.box = whole_box(type.dims), .begin = first, .end = first + count}, out);
  };
  return {.name = tensor, .dtype = type.dtype, .dims = type.dims, .read = read_part};
}

void CheckpointReader::verify(int member, int members, int num_threads) const {
  constexpr int64_t kRun = 16;  // chunks that one member and one thread hash in a row
  std::vector<std::pair<size_t, int64_t>> runs;
  int64_t number = 0;
  for (size_t s = 0; s < shards_.size(); ++s) {
    for (int64_t chunk = 0; chunk < std::ssize(shards_[s].verified); chunk += kRun) {
      if (number++ % members == member) runs.emplace_back(s, chunk);
    }
  }
  in_parallel(runs.size(), num_threads, [&](size_t r) {
    const auto [shard, first] = runs[r];
    const int64_t end = std::min<int64_t>(first + kRun, std::ssize(shards_[shard].verified));
    for (int64_t chunk = first; chunk < end; ++chunk) check_chunk(shard, chunk);
  });
}

void CheckpointReader::check_headers() const {
  for (size_t s = 0; s < shards_.size(); ++s) {
    const ShardSummary& shard = manifest_.shards[s];
    uint64_t length = 0;
    const auto front = checked_bytes_at(s, 0, std::min<int64_t>(shard.file_bytes, sizeof length));
    std::memcpy(&length, front.data(), front.size());
    const auto rest = static_cast<uint64_t>(shard.file_bytes) - front.size();
    checked_bytes_at(s, 0, std::ssize(front) + static_cast<int64_t>(std::min(length, rest)));
    check_pieces(shard, shards_[s].file.bytes(), manifest_.tensors,
                 (folder_ / shard.file).string());
  }
}

}  // namespace tokamak
