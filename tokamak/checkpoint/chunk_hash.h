// xxHash64 over fixed chunks of a file, so that damage is located and only the chunks in use need
// be checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace tokamak {

uint64_t hash_of(std::span<const std::byte> bytes);

/// Hashes a stream as it goes by.
class ChunkHasher {
 public:
  explicit ChunkHasher(int64_t chunk_bytes);
  ChunkHasher(const ChunkHasher&) = delete;
  ChunkHasher& operator=(const ChunkHasher&) = delete;
  ~ChunkHasher();

  void update(std::span<const std::byte> bytes);

  /// Returns one hash per chunk; the last chunk may be short.
  std::vector<uint64_t> finish();

 private:
  struct State;

  void close_chunk();

  std::unique_ptr<State> state_;
  size_t chunk_bytes_;
  size_t filled_ = 0;
  std::vector<uint64_t> hashes_;
};

}  // namespace tokamak
