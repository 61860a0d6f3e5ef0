#include "tokamak/tokenizer/bpe.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "tokamak/core/error.h"
#include "tokamak/tokenizer/unicode.h"

namespace tokamak {
namespace {

constexpr size_t kShortWord = 48;

template <class T>
uint64_t load(const char* p) {
  T word = 0;
  std::memcpy(&word, p, sizeof(T));
  return word;
}

/// Returns the last 1 to 8 bytes of `bytes`, which may overlap the bytes read before.
uint64_t tail_of(std::string_view bytes) {
  const size_t n = bytes.size();
  const char* p = bytes.data();
  if (n >= 8) return load<uint64_t>(p + n - 8);
  if (n >= 4) return load<uint32_t>(p) << 32U | load<uint32_t>(p + n - 4);
  if (n == 0) return 0;
  return load<uint8_t>(p) << 16U | load<uint8_t>(p + n / 2) << 8U | load<uint8_t>(p + n - 1);
}

uint64_t hash_of(std::string_view bytes) {
  constexpr uint64_t kOdd = 0x9E3779B97F4A7C15U;
  uint64_t h = bytes.size() * kOdd;
  size_t at = 0;
  for (; at + 8 < bytes.size(); at += 8) {
    h = (std::rotl(h, 23) ^ load<uint64_t>(bytes.data() + at)) * kOdd;
  }
  h = (std::rotl(h, 23) ^ tail_of(bytes)) * kOdd;
  return (h ^ h >> 32U) * kOdd;
}

uint32_t tag_of(uint64_t hash) {
  return static_cast<uint32_t>(hash >> 32U);
}

}  // namespace

void Vocabulary::reserve(size_t tokens, size_t bytes) {
  bytes_.reserve(bytes);
  slots_.reserve(tokens);
  grow(std::bit_ceil(tokens * 2 + 2));
  max_id_ = static_cast<int64_t>(tokens) * kIdSpread + kIdSlack;
}

void Vocabulary::grow(size_t capacity) {
  if (capacity <= table_.size()) return;
  table_.assign(capacity, Entry());
  for (int32_t id = 0; id < end_id(); ++id) {
    if (has(id) && !slots_[id].hidden) insert(id);
  }
}

void Vocabulary::insert(int32_t id) {
  const uint64_t hash = hash_of(bytes_of(id));
  const size_t mask = table_.size() - 1;
  size_t at = hash & mask;
  while (table_[at].id >= 0) at = (at + 1) & mask;
  table_[at] = {.tag = tag_of(hash), .id = id};
}

bool Vocabulary::add_hidden(std::string_view bytes, int32_t id) {
  TOK_CHECK(id >= 0 && id <= max_id_);
  if (has(id)) return false;
  TOK_REQUIRE(bytes_.size() + bytes.size() < kHole, "vocabulary: more than 4 GiB of tokens");
  if (id >= end_id()) slots_.resize(static_cast<size_t>(id) + 1);
  slots_[id] = {.begin = static_cast<uint32_t>(bytes_.size()),
                .size = static_cast<uint32_t>(bytes.size()),
                .hidden = true};
  bytes_ += bytes;
  ++size_;
  return true;
}

bool Vocabulary::add(std::string_view bytes, int32_t id) {
  if (find(bytes) >= 0 || !add_hidden(bytes, id)) return false;
  slots_[id].hidden = false;
  if (size_ * 2 > table_.size()) {
    grow(std::bit_ceil(size_ * 4));
  } else {
    insert(id);
  }
  return true;
}

int32_t Vocabulary::find(std::string_view bytes) const {
  if (table_.empty()) return -1;
  const uint64_t hash = hash_of(bytes);
  const size_t mask = table_.size() - 1;
  for (size_t at = hash & mask; table_[at].id >= 0; at = (at + 1) & mask) {
    if (table_[at].tag == tag_of(hash) && bytes_of(table_[at].id) == bytes) return table_[at].id;
  }
  return -1;
}

void Bpe::find_byte_ids() {
  for (size_t byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    byte_ids[byte] = vocabulary.find(std::string_view(&c, 1));
  }
}

void Bpe::find_fallback_ids(bool has_fallback) {
  for (size_t byte = 0; byte < 256; ++byte)
    fallback_ids[byte] = has_fallback ? vocabulary.find(fmt::format("<0x{:02X}>", byte)) : -1;
}

void Bpe::encode_word(std::string_view word, BpeScratch& scratch, std::vector<int32_t>& ids) const {
  if (whole_words_first || word.size() == 1) {
    const int32_t id = vocabulary.find(word);
    if (id >= 0) return ids.push_back(id);
  }
  TOK_REQUIRE(word.size() < (size_t{1} << 30U), "a word of {} bytes: wanted less than 1 GiB",
              word.size());
  of_characters ? to_characters(word, scratch.symbols) : to_symbols(word, scratch.symbols);
  if (scratch.symbols.size() <= kShortWord) {
    merge_short(scratch);
  } else {
    merge_long(scratch);
  }
  ids.insert(ids.end(), scratch.symbols.begin(), scratch.symbols.end());
}

void Bpe::to_symbols(std::string_view word, std::vector<int32_t>& symbols) const {
  symbols.clear();
  bool after_unknown = false;
  for (const char c : word) {
    const int32_t id = byte_ids[static_cast<uint8_t>(c)];
    if (id >= 0) {
      symbols.push_back(id);
    } else if (unknown && !(after_unknown && fuse_unknown)) {
      symbols.push_back(*unknown);
    }
    after_unknown = id < 0;
  }
}

bool Bpe::append_fallback(std::string_view character, std::vector<int32_t>& symbols) const {
  const auto id_of = [&](char c) { return fallback_ids[static_cast<uint8_t>(c)]; };
  for (const char c : character) {
    if (id_of(c) < 0) return false;
  }
  for (const char c : character) symbols.push_back(id_of(c));
  return true;
}

// Unknown characters that are not fused wait for the next known one, as they do at Hugging Face:
// bytes overtake them.
void Bpe::to_characters(std::string_view word, std::vector<int32_t>& symbols) const {
  symbols.clear();
  bool has_unknown = false;
  const auto put_unknown = [&] {
    if (has_unknown) symbols.push_back(*unknown);
    has_unknown = false;
  };
  const char* end = word.data() + word.size();
  for (const char* p = word.data(); p < end;) {
    const size_t bytes = decode_utf8(p, end).bytes;
    const std::string_view character(p, bytes);
    p += bytes;
    const int32_t id =
        bytes == 1 ? byte_ids[static_cast<uint8_t>(character[0])] : vocabulary.find(character);
    if (id >= 0) {
      put_unknown();
      symbols.push_back(id);
    } else if (!append_fallback(character, symbols) && unknown) {
      if (!fuse_unknown) put_unknown();
      has_unknown = true;
    }
  }
  put_unknown();
}

// Scans for the lowest rank again after each merge. This is quadratic but fastest on short words.
void Bpe::merge_short(BpeScratch& scratch) const {
  std::vector<int32_t>& symbols = scratch.symbols;
  size_t n = symbols.size();
  if (n < 2) return;
  uint32_t ranks[kShortWord];
  for (size_t i = 0; i + 1 < n; ++i) ranks[i] = merges.find(symbols[i], symbols[i + 1]).rank;
  while (n > 1) {
    const auto at = static_cast<size_t>(std::min_element(ranks, ranks + n - 1) - ranks);
    if (ranks[at] == Merge::kNone) break;
    symbols[at] = merges.find(symbols[at], symbols[at + 1]).id;
    --n;
    for (size_t i = at + 1; i < n; ++i) symbols[i] = symbols[i + 1];
    for (size_t i = at; i + 1 < n; ++i) ranks[i] = ranks[i + 1];
    if (at > 0) ranks[at - 1] = merges.find(symbols[at - 1], symbols[at]).rank;
    if (at + 1 < n) ranks[at] = merges.find(symbols[at], symbols[at + 1]).rank;
  }
  symbols.resize(n);
}

// Uses a queue of (rank, position) over a linked list, which takes n log n time.
void Bpe::merge_long(BpeScratch& scratch) const {
  std::vector<int32_t>& symbols = scratch.symbols;
  const auto n = static_cast<int32_t>(symbols.size());
  scratch.ranks.assign(symbols.size(), Merge::kNone);
  scratch.next.resize(symbols.size());
  scratch.previous.resize(symbols.size());
  scratch.queue.clear();
  const auto pack = [](uint32_t rank, int32_t at) {
    return uint64_t{rank} << 32U | static_cast<uint32_t>(at);
  };
  for (int32_t i = 0; i < n; ++i) {
    scratch.next[i] = i + 1;
    scratch.previous[i] = i - 1;
    if (i + 1 == n) break;
    scratch.ranks[i] = merges.find(symbols[i], symbols[i + 1]).rank;
    if (scratch.ranks[i] != Merge::kNone) scratch.queue.push(pack(scratch.ranks[i], i));
  }
  const auto refresh = [&](int32_t left) {
    const int32_t right = scratch.next[left];
    const uint32_t rank =
        right < n ? merges.find(symbols[left], symbols[right]).rank : Merge::kNone;
    scratch.ranks[left] = rank;
    if (rank != Merge::kNone) scratch.queue.push(pack(rank, left));
  };
  for (uint64_t top = 0; scratch.queue.pop(top);) {
    const auto left = static_cast<int32_t>(top & UINT32_MAX);
    if (scratch.ranks[left] != top >> 32U) continue;
    const int32_t right = scratch.next[left];
    symbols[left] = merges.find(symbols[left], symbols[right]).id;
    scratch.ranks[right] = Merge::kNone;
    scratch.next[left] = scratch.next[right];
    if (scratch.next[left] < n) scratch.previous[scratch.next[left]] = left;
    refresh(left);
    if (scratch.previous[left] >= 0) refresh(scratch.previous[left]);
  }
  size_t kept = 0;
  for (int32_t i = 0; i < n; i = scratch.next[i]) symbols[kept++] = symbols[i];
  symbols.resize(kept);
}

}  // namespace tokamak
