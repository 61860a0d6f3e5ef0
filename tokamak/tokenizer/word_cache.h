// Caches the ids of recent words. Most words of real text are found here without merging.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace tokamak {

/// A direct-mapped cache with one cache line per word. It does not keep words above 16 bytes or
/// kMaxIds ids, and it is not thread-safe.
class WordCache {
 public:
  static constexpr size_t kMaxBytes = 16;
  static constexpr size_t kMaxIds = 11;

  struct alignas(64) Entry {
    uint64_t low = 0;
    uint64_t high = 0;
    uint8_t size = 0;
    uint8_t num_ids = 0;
    int32_t ids[kMaxIds] = {};
  };

  WordCache() : entries_(size_t{1} << kBits) {}

  /// Returns the entry where `word` is or may be put; it holds the word if `hit`. The bytes up to
  /// `end` must be readable. REQUIRES: 0 < word.size() <= kMaxBytes.
  Entry& find(std::string_view word, const char* end, bool& hit) {
    uint64_t low = 0;
    uint64_t high = 0;
    load(word, end, low, high);
    Entry& entry = entries_[slot_of(low, high, word.size())];
    hit = entry.low == low && entry.high == high && entry.size == word.size();
    if (!hit) key_ = {low, high};
    return entry;
  }

  /// Puts the word of the last missed find() into its entry. REQUIRES: count <= kMaxIds.
  void put(Entry& entry, size_t word_bytes, const int32_t* ids, size_t count) {
    entry.low = key_.low;
    entry.high = key_.high;
    entry.size = static_cast<uint8_t>(word_bytes);
    entry.num_ids = static_cast<uint8_t>(count);
    std::memcpy(entry.ids, ids, count * sizeof(int32_t));
  }

 private:
  static constexpr int kBits = 16;

  struct Key {
    uint64_t low = 0;
    uint64_t high = 0;
  };

  static void load(std::string_view word, const char* end, uint64_t& low, uint64_t& high) {
    if (end - word.data() >= static_cast<ptrdiff_t>(kMaxBytes)) {
      std::memcpy(&low, word.data(), 8);
      std::memcpy(&high, word.data() + 8, 8);
      const size_t n = word.size();
      low &= n >= 8 ? ~uint64_t{0} : (uint64_t{1} << (n * 8)) - 1;
      high &= n >= 16 ? ~uint64_t{0} : n <= 8 ? 0 : (uint64_t{1} << ((n - 8) * 8)) - 1;
    } else {
      char bytes[kMaxBytes] = {};
      std::memcpy(bytes, word.data(), word.size());
      std::memcpy(&low, bytes, 8);
      std::memcpy(&high, bytes + 8, 8);
    }
  }

  static size_t slot_of(uint64_t low, uint64_t high, size_t size) {
    uint64_t h = (low ^ (high * 0xC2B2AE3D27D4EB4FU) ^ size) * 0x9E3779B97F4A7C15U;
    h ^= h >> 29U;
    return static_cast<size_t>((h * 0xBF58476D1CE4E5B9U) >> (64U - kBits));
  }

  std::vector<Entry> entries_;
  Key key_;
};

}  // namespace tokamak
