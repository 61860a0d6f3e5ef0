// Reads a checkpoint onto any mesh: any slice of any tensor is assembled from the pieces that hold
// it. Every byte is hashed before it is returned.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "tokamak/checkpoint/manifest.h"
#include "tokamak/checkpoint/tensor_source.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"

namespace tokamak {

/// A checkpoint's bytes are not those that were written, or the disk cannot read them any more. The
/// text names the file and the tensors.
class Damaged : public Error {
 public:
  using Error::Error;
};

/// Reads a complete checkpoint folder. Reading is thread-safe.
class CheckpointReader {
 public:
  /// Checks the manifest and the size of every shard; throws Error naming file and fault, Damaged
  /// where a shard is absent or of another size.
  explicit CheckpointReader(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }

  const Manifest& manifest() const { return manifest_; }

  /// Returns null if there is no such tensor.
  const TensorType* find(const std::string& tensor) const;

  /// Returns the named section; throws Error if there is none.
  const std::string& section(const std::string& name) const;

  /// Fills `out` with the slice's elements in order. Throws Error naming the tensor, or Damaged
  /// naming the shard, the offset and the tensors of a chunk whose hash is wrong.
  void read(const std::string& tensor, const Slice& slice, std::span<std::byte> out) const;

  /// Returns the whole tensor as a source that must not outlive the reader.
  TensorSource source(const std::string& tensor) const;

  /// Hashes everything, or this member's share where several divide it. Throws Damaged for the
  /// first damaged chunk.
  void verify(int member = 0, int members = 1, int num_threads = 1) const;

  /// Hashes the shards' headers and checks all pieces against them. Throws Error naming shard and
  /// piece.
  void check_headers() const;

 private:
  struct Shard {
    MappedFile file;
    /// One flag per chunk, set once its hash was found right.
    std::vector<std::atomic<bool>> verified;
  };

  struct Part {
    size_t shard = 0;
    size_t piece = 0;
  };

  const TensorType& type_of(const std::string& tensor) const;
  void check_chunk(size_t shard, int64_t chunk) const;
  std::string tensors_in(size_t shard, int64_t begin, int64_t end) const;
  std::span<const std::byte> checked_bytes_at(size_t shard, int64_t begin, int64_t bytes) const;

  std::filesystem::path folder_;
  Manifest manifest_;
  mutable std::vector<Shard> shards_;
  std::map<std::string, std::vector<Part>> parts_;
};

}  // namespace tokamak
