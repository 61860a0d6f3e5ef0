// Reads a checkpoint onto any mesh: any slice of any tensor is assembled from the pieces that hold
// it. Every byte is hashed before it is returned.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "tokamak/checkpoint/block_file.h"
#include "tokamak/checkpoint/manifest.h"
#include "tokamak/checkpoint/tensor_source.h"
#include "tokamak/core/error.h"

namespace tokamak {

/// A checkpoint's bytes are not those that were written, or the disk cannot read them any more. The
/// text names the file and the tensors.
class Damaged : public Error {
 public:
  using Error::Error;
};

/// The bytes of a shard that one thread has read and checked last, so that it reads none twice when
/// it continues from there.
class ReadWindow {
 public:
  /// `is_direct`: past the page cache, where the file system takes that. It is faster for large
  /// files whose bytes no other process of the host wants.
  explicit ReadWindow(bool is_direct = false) : is_direct_(is_direct) {}

 private:
  friend class CheckpointReader;

  bool is_direct_;
  BlockMemory memory_;
  size_t shard_ = 0;
  int64_t begin_ = 0;
  int64_t end_ = 0;  // begin_: it holds nothing
};

/// Where a checkpoint holds an element.
struct ShardPlace {
  size_t shard = 0;
  int64_t offset = 0;  ///< in the file

  auto operator<=>(const ShardPlace&) const = default;
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
  void read(const std::string& tensor, const Slice& slice, std::span<std::byte> out,
            ReadWindow& window) const;

  /// Passes the slice's bytes to `sink`, run by run, each with its place among them. Throws like
  /// read(). REQUIRES: `window` serves one call at a time, and this reader only.
  void stream(const std::string& tensor, const Slice& slice, ReadWindow& window,
              const std::function<void(int64_t, std::span<const std::byte>)>& sink) const;

  /// Returns where the slice's first element lies. REQUIRES: the slice has elements.
  ShardPlace place_of(const std::string& tensor, const Slice& slice) const;

  /// Returns the whole tensor as a source that must not outlive the reader.
  TensorSource source(const std::string& tensor) const;

  /// Hashes everything, or this member's share where several divide it. Throws Damaged for the
  /// first damaged chunk.
  void verify(int member = 0, int members = 1, int num_threads = 1) const;

  /// Hashes the shards' headers and checks all pieces against them. Throws Error naming shard and
  /// piece.
  void check_headers() const;

 private:
  struct Part {
    size_t shard = 0;
    size_t piece = 0;
  };

  const TensorType& type_of(const std::string& tensor) const;
  void check_slice(const TensorType& type, const std::string& tensor, const Slice& slice) const;
  std::string tensors_in(size_t shard, int64_t begin, int64_t end) const;
  std::span<const std::byte> checked_bytes_at(ReadWindow& window, size_t shard, int64_t begin,
                                              int64_t bytes) const;
  void fill(ReadWindow& window, size_t shard, int64_t begin, int64_t bytes) const;

  std::filesystem::path folder_;
  Manifest manifest_;
  std::map<std::string, std::vector<Part>> parts_;
};

}  // namespace tokamak
