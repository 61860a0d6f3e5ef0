#include "tokamak/checkpoint/checkpoint_reader.h"

#include <cstring>

#include "tokamak/checkpoint/chunk_hash.h"
#include "tokamak/checkpoint/formats/outside_name.h"
#include "tokamak/core/error.h"

namespace tokamak {
namespace fs = std::filesystem;

namespace {

Manifest manifest_of(const fs::path& folder) {
  const fs::path path = folder / kManifestFile;
  TOK_REQUIRE(path_exists(path), "{}: not a checkpoint: there is no {}", folder.string(),
              kManifestFile);
  return parse_manifest(MappedFile(path).text(), path.string());
}

}  // namespace

CheckpointReader::CheckpointReader(const fs::path& folder)
    : folder_(folder), manifest_(manifest_of(folder)) {
  for (const ShardSummary& summary : manifest_.shards) {
    const fs::path path = folder / summary.file;
    TOK_REQUIRE(path_exists(path), "{}: shard {} is absent", folder.string(), summary.file);
    MappedFile file(path);
    TOK_REQUIRE(std::ssize(file.bytes()) == summary.file_bytes,
                "{}: damaged: {} bytes, the manifest says {}", path.string(), file.bytes().size(),
                summary.file_bytes);
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

std::span<const std::byte> CheckpointReader::checked_bytes_at(size_t shard, int64_t begin,
                                                              int64_t bytes) const {
  const ShardSummary& summary = manifest_.shards[shard];
  const auto all = shards_[shard].file.bytes();
  const int64_t width = summary.chunk_bytes;
  for (int64_t chunk = begin / width; chunk * width < begin + bytes; ++chunk) {
    auto& verified = shards_[shard].verified[chunk];
    if (verified.load(std::memory_order_relaxed)) continue;
    const auto first = static_cast<size_t>(chunk * width);
    const auto content =
        all.subspan(first, std::min(all.size() - first, static_cast<size_t>(width)));
    TOK_REQUIRE(hash_of(content) == summary.hashes[chunk],
                "{}: damaged: the hash of the {} bytes at offset {} is wrong",
                (folder_ / summary.file).string(), content.size(), first);
    verified.store(true, std::memory_order_relaxed);
  }
  return all.subspan(begin, bytes);
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

void CheckpointReader::verify(int member, int members) const {
  for (auto s = static_cast<size_t>(member); s < shards_.size();
       s += static_cast<size_t>(members)) {
    checked_bytes_at(s, 0, manifest_.shards[s].file_bytes);
  }
}

}  // namespace tokamak
