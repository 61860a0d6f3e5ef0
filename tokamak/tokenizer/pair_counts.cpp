#include "tokamak/tokenizer/pair_counts.h"

#include "tokamak/core/error.h"

namespace tokamak {

void PairCounts::add_word(const std::vector<int32_t>& ids, int64_t count) {
  TOK_REQUIRE(symbols_.size() + ids.size() < UINT32_MAX && words_.size() < UINT32_MAX,
              "training a tokenizer: more than 4 GiB of distinct words; use less text");
  const auto word = static_cast<uint32_t>(words_.size());
  words_.push_back({.begin = static_cast<uint32_t>(symbols_.size()),
                    .size = static_cast<uint32_t>(ids.size()),
                    .count = count});
  symbols_.insert(symbols_.end(), ids.begin(), ids.end());
  for (size_t i = 0; i + 1 < ids.size(); ++i) change(ids[i], ids[i + 1], count, word);
}

uint32_t PairCounts::index_of(int32_t left, int32_t right) {
  const uint32_t known = index_.find(left, right).rank;
  if (known != Merge::kNone) return known;
  const auto index = static_cast<uint32_t>(pairs_.size());
  index_.set(left, right, {.rank = index, .id = 0});
  pairs_.push_back({.left = left, .right = right});
  return index;
}

void PairCounts::change(int32_t left, int32_t right, int64_t by, uint32_t word) {
  const uint32_t index = index_of(left, right);
  Info& pair = pairs_[index];
  pair.count += by;
  if (by <= 0) return;
  if (pair.words.empty() || pair.words.back() != word) pair.words.push_back(word);
  if (!pair.touched) {
    pair.touched = true;
    grown_.push_back(index);
  }
}

void PairCounts::push(uint32_t pair) {
  Info& info = pairs_[pair];
  info.touched = false;
  if (info.count <= 0) return;
  queue_.push(
      {.count = info.count,
       .key = uint64_t{static_cast<uint32_t>(info.left)} << 32U | static_cast<uint32_t>(info.right),
       .pair = pair});
}

bool PairCounts::pop(int64_t min_count, Pair& pair) {
  for (const uint32_t grown : grown_) push(grown);
  grown_.clear();
  while (!queue_.empty()) {
    const Entry top = queue_.top();
    queue_.pop();
    const Info& info = pairs_[top.pair];
    if (info.count != top.count) {
      push(top.pair);
      continue;
    }
    if (info.count < min_count) return false;
    pair = {.left = info.left, .right = info.right, .count = info.count};
    popped_ = top.pair;
    return true;
  }
  return false;
}

void PairCounts::join(const Pair& pair, int32_t id) {
  const std::vector<uint32_t> words = std::move(pairs_[popped_].words);
  const uint32_t popped = popped_;
  for (const uint32_t word : words) join_in(word, pair, id);
  pairs_[popped].words.clear();
  pairs_[popped].words.shrink_to_fit();
  pairs_[popped].count = 0;
}

void PairCounts::join_in(uint32_t word, const Pair& pair, int32_t id) {
  Word& w = words_[word];
  int32_t* symbols = symbols_.data() + w.begin;
  uint32_t out = 0;
  for (uint32_t in = 0; in < w.size; ++in) {
    if (in + 1 >= w.size || symbols[in] != pair.left || symbols[in + 1] != pair.right) {
      symbols[out++] = symbols[in];
      continue;
    }
    if (out > 0) {
      change(symbols[out - 1], pair.left, -w.count, word);
      change(symbols[out - 1], id, w.count, word);
    }
    if (in + 2 < w.size) {
      change(pair.right, symbols[in + 2], -w.count, word);
      change(id, symbols[in + 2], w.count, word);
    }
    symbols[out++] = id;
    ++in;
  }
  w.size = out;
}

}  // namespace tokamak
