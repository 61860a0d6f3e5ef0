// Maps a pair of neighbouring ids to the merge that joins them.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tokamak {

/// The rank of a merge (lower merges first) and the id it makes.
struct Merge {
  static constexpr uint32_t kNone = UINT32_MAX;

  uint32_t rank = kNone;
  int32_t id = -1;
};

/// Uses open addressing with linear probing; a slot has 16 bytes, and at most half are full.
class PairMap {
 public:
  PairMap() { reserve(8); }

  void reserve(size_t pairs) {
    const size_t capacity = std::bit_ceil(pairs * 2 + 2);
    if (capacity > slots_.size()) rehash(capacity);
  }

  size_t size() const { return size_; }

  /// Returns the merge of the pair, or one of rank Merge::kNone.
  Merge find(int32_t left, int32_t right) const {
    const uint64_t key = key_of(left, right);
    for (size_t at = slot_of(key);; at = (at + 1) & mask_) {
      const Slot& slot = slots_[at];
      if (slot.key == key) return slot.merge;
      if (slot.key == kFree) return {};
    }
  }

  /// Sets the merge of the pair, replacing an older one.
  void set(int32_t left, int32_t right, Merge merge) {
    if (size_ * 2 >= slots_.size()) rehash(slots_.size() * 2);
    Slot& slot = place_of(key_of(left, right));
    size_ += slot.key == kFree ? 1U : 0U;
    slot = {key_of(left, right), merge};
  }

 private:
  static constexpr uint64_t kFree = UINT64_MAX;

  struct Slot {
    uint64_t key = kFree;
    Merge merge;
  };

  static uint64_t key_of(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32U | static_cast<uint32_t>(right);
  }

  size_t slot_of(uint64_t key) const {
    return static_cast<size_t>((key * 0x9E3779B97F4A7C15U) >> shift_);
  }

  Slot& place_of(uint64_t key) {
    size_t at = slot_of(key);
    while (slots_[at].key != kFree && slots_[at].key != key) at = (at + 1) & mask_;
    return slots_[at];
  }

  void rehash(size_t capacity) {
    std::vector<Slot> old(capacity);
    old.swap(slots_);
    mask_ = capacity - 1;
    shift_ = 64 - std::countr_zero(capacity);
    for (const Slot& slot : old) {
      if (slot.key != kFree) place_of(slot.key) = slot;
    }
  }

  std::vector<Slot> slots_;
  size_t mask_ = 0;
  int shift_ = 63;
  size_t size_ = 0;
};

}  // namespace tokamak
