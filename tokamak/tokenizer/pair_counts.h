// The inner loop of training, which keeps words as ids and returns the most frequent pair first.
#pragma once

#include <cstdint>
#include <queue>
#include <vector>

#include "tokamak/tokenizer/pair_map.h"

namespace tokamak {

/// Counts neighbouring ids over a set of words and keeps the counts current while pairs are joined.
class PairCounts {
 public:
  /// Adds a word that occurs `count` times. REQUIRES: before the first pop().
  void add_word(const std::vector<int32_t>& ids, int64_t count);

  /// The two ids that are neighbours most often; among equal counts, the smallest.
  struct Pair {
    int32_t left;
    int32_t right;
    int64_t count;
  };

  /// Takes the next pair; returns false if none occurs at least `min_count` times.
  bool pop(int64_t min_count, Pair& pair);

  /// Joins every occurrence of `pair` into `id`. REQUIRES: pair was popped last.
  void join(const Pair& pair, int32_t id);

 private:
  struct Word {
    uint32_t begin;
    uint32_t size;
    int64_t count;
  };

  struct Info {
    int32_t left;
    int32_t right;
    int64_t count = 0;
    std::vector<uint32_t> words;  // may repeat words and hold words that lost the pair
    bool touched = false;
  };

  struct Entry {
    int64_t count;
    uint64_t key;
    uint32_t pair;

    bool operator<(const Entry& other) const {
      return count != other.count ? count < other.count : key > other.key;
    }
  };

  uint32_t index_of(int32_t left, int32_t right);
  void change(int32_t left, int32_t right, int64_t by, uint32_t word);
  void join_in(uint32_t word, const Pair& pair, int32_t id);
  void push(uint32_t pair);

  std::vector<int32_t> symbols_;
  std::vector<Word> words_;
  PairMap index_;
  std::vector<Info> pairs_;
  std::vector<uint32_t> grown_;
  std::priority_queue<Entry> queue_;
  uint32_t popped_ = 0;
};

}  // namespace tokamak
