#include "tokamak/checkpoint/chunk_hash.h"

#include <algorithm>
#include <utility>

#include <xxhash.h>

#include "tokamak/core/error.h"

namespace tokamak {

struct ChunkHasher::State {
  std::unique_ptr<XXH64_state_t, XXH_errorcode (*)(XXH64_state_t*)> xxh{XXH64_createState(),
                                                                        XXH64_freeState};
};

uint64_t hash_of(std::span<const std::byte> bytes) {
  return XXH64(bytes.data(), bytes.size(), 0);
}

ChunkHasher::ChunkHasher(int64_t chunk_bytes)
    : state_(std::make_unique<State>()), chunk_bytes_(static_cast<size_t>(chunk_bytes)) {
  TOK_CHECK(chunk_bytes > 0 && state_->xxh != nullptr);
  XXH64_reset(state_->xxh.get(), 0);
}

ChunkHasher::~ChunkHasher() = default;

void ChunkHasher::update(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto part = bytes.first(std::min(bytes.size(), chunk_bytes_ - filled_));
    XXH64_update(state_->xxh.get(), part.data(), part.size());
    filled_ += part.size();
    if (filled_ == chunk_bytes_) close_chunk();
    bytes = bytes.subspan(part.size());
  }
}

std::vector<uint64_t> ChunkHasher::finish() {
  if (filled_ > 0) close_chunk();
  return std::exchange(hashes_, {});
}

void ChunkHasher::close_chunk() {
  hashes_.push_back(XXH64_digest(state_->xxh.get()));
  XXH64_reset(state_->xxh.get(), 0);
  filled_ = 0;
}

}  // namespace tokamak
