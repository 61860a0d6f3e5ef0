// Byte-pair merging over bytes or characters: holds the vocabulary and the merges, and finds a
// word's ids.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokamak/tokenizer/merge_queue.h"
#include "tokamak/tokenizer/pair_map.h"

namespace tokamak {

/// Maps ids to token bytes and token bytes to ids. Ids may have holes.
class Vocabulary {
 public:
  /// Allocates memory for `tokens` tokens of `bytes` bytes in all, and sets max_id(), above which
  /// ids are too sparse.
  void reserve(size_t tokens, size_t bytes);

  /// Returns the largest id that add() accepts; it allows holes, but not tables that are mostly
  /// holes.
  int64_t max_id() const { return max_id_; }

  /// Returns false if the id or the bytes are taken. REQUIRES: 0 <= id <= max_id().
  bool add(std::string_view bytes, int32_t id);

  /// Adds a token that find() does not see and that may repeat the bytes of another token.
  bool add_hidden(std::string_view bytes, int32_t id);

  /// Returns the id of `bytes`, or -1.
  int32_t find(std::string_view bytes) const;

  bool has(int32_t id) const { return id >= 0 && id < end_id() && slots_[id].begin != kHole; }

  /// Returns the bytes of `id`, or none for a hole. REQUIRES: 0 <= id < end_id().
  std::string_view bytes_of(int32_t id) const {
    const Slot& slot = slots_[id];
    return slot.begin == kHole ? std::string_view()
                               : std::string_view(bytes_).substr(slot.begin, slot.size);
  }

  /// Returns the largest id plus one.
  int32_t end_id() const { return static_cast<int32_t>(slots_.size()); }

  size_t size() const { return size_; }

 private:
  static constexpr uint32_t kHole = UINT32_MAX;
  static constexpr int64_t kIdSlack = int64_t{1} << 17;
  static constexpr int64_t kIdSpread = 8;

  struct Slot {
    uint32_t begin = kHole;
    uint32_t size = 0;
    bool hidden = false;
  };

  struct Entry {
    uint32_t tag = 0;
    int32_t id = -1;
  };

  void grow(size_t capacity);
  void insert(int32_t id);

  std::string bytes_;
  std::vector<Slot> slots_;
  std::vector<Entry> table_;  // open addressing, a power of two, id -1 is free
  size_t size_ = 0;
  int64_t max_id_ = kIdSlack;
};

/// Holds the buffers of one encoding thread.
struct BpeScratch {
  std::vector<int32_t> symbols;
  std::vector<uint32_t> ranks;
  std::vector<int32_t> next;
  std::vector<int32_t> previous;
  MergeQueue queue;
};

/// Merges the lowest rank first, then the leftmost pair of a rank. It is immutable once filled.
struct Bpe {
  Vocabulary vocabulary;
  PairMap merges;
  /// The id of each byte, -1 where the vocabulary lacks it.
  std::array<int32_t, 256> byte_ids{};
  /// The id of bytes or characters that have none; if it is absent, they are dropped.
  std::optional<int32_t> unknown;
  /// Whether neighbouring unknown ones become one.
  bool fuse_unknown = false;
  /// Whether words begin as characters instead of bytes. A character that is no token becomes its
  /// bytes, if each of them has a fallback id.
  bool of_characters = false;
  std::array<int32_t, 256> fallback_ids{};  ///< of tokens such as <0x0A>, -1 where there is none
  /// Whether a word that is itself a token is taken whole, without merging.
  bool whole_words_first = false;

  /// Sets byte_ids from the vocabulary.
  void find_byte_ids();

  /// Sets fallback_ids from the vocabulary if `has_fallback`, else to none.
  void find_fallback_ids(bool has_fallback);

  /// Appends the ids of one word.
  void encode_word(std::string_view word, BpeScratch& scratch, std::vector<int32_t>& ids) const;

 private:
  void to_symbols(std::string_view word, std::vector<int32_t>& symbols) const;
  void to_characters(std::string_view word, std::vector<int32_t>& symbols) const;
  bool append_fallback(std::string_view character, std::vector<int32_t>& symbols) const;
  void merge_short(BpeScratch& scratch) const;
  void merge_long(BpeScratch& scratch) const;
};

}  // namespace tokamak
