#include "tokamak/tokenizer/bpe.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "tokamak/core/random.h"

namespace tokamak {
namespace {

constexpr std::string_view kLetters = "abcd";

/// The rule itself: join the leftmost pair of the lowest rank.
std::vector<int32_t> merge_plainly(const Bpe& bpe, std::string_view word) {
  std::vector<int32_t> ids;
  for (const char c : word) ids.push_back(bpe.byte_ids[static_cast<uint8_t>(c)]);
  while (true) {
    Merge best;
    size_t at = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const Merge merge = bpe.merges.find(ids[i], ids[i + 1]);
      if (merge.rank < best.rank) {
        best = merge;
        at = i;
      }
    }
    if (best.rank == Merge::kNone) return ids;
    ids[at] = best.id;
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(at) + 1);
  }
}

/// Merges of random tokens in a random order.
Bpe random_bpe(uint64_t seed) {
  Bpe bpe;
  bpe.vocabulary.reserve(200, 1000);
  for (size_t i = 0; i < kLetters.size(); ++i) {
    bpe.vocabulary.add(kLetters.substr(i, 1), static_cast<int32_t>(i));
  }
  for (uint32_t rank = 0; rank < 150; ++rank) {
    const auto end = static_cast<uint32_t>(bpe.vocabulary.end_id());
    const auto left = static_cast<int32_t>(random_u32(seed, rank, 0) % end);
    const auto right = static_cast<int32_t>(random_u32(seed, rank, 1) % end);
    const std::string joined(std::string(bpe.vocabulary.bytes_of(left)) +
                             std::string(bpe.vocabulary.bytes_of(right)));
    if (joined.size() > 8) continue;
    if (bpe.vocabulary.find(joined) < 0) {
      bpe.vocabulary.add(joined, static_cast<int32_t>(end));
    }
    bpe.merges.set(left, right,
                   {.rank = random_u32(seed, rank, 2), .id = bpe.vocabulary.find(joined)});
  }
  bpe.find_byte_ids();
  return bpe;
}

TEST(Bpe, ShortAndLongWordsMergeByTheRule) {
  BpeScratch scratch;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Bpe bpe = random_bpe(seed);
    std::string word;
    for (uint64_t i = 0; i < 2 + seed; ++i) {
      word += kLetters[random_u32(seed, 99, i) % (1 + seed % kLetters.size())];
    }
    std::vector<int32_t> ids;
    bpe.encode_word(word, scratch, ids);
    ASSERT_EQ(ids, merge_plainly(bpe, word)) << seed << ' ' << word;
  }
}

TEST(Bpe, UnknownBytesAreDroppedOrReplaced) {
  Bpe bpe = random_bpe(1);
  BpeScratch scratch;
  const auto encode = [&](std::string_view word) {
    std::vector<int32_t> ids;
    bpe.encode_word(word, scratch, ids);
    return ids;
  };
  EXPECT_EQ(encode("ayyb"), encode("ab"));
  bpe.unknown = 150;
  EXPECT_EQ(encode("yyy"), (std::vector<int32_t>{150, 150, 150}));
  bpe.fuse_unknown = true;
  EXPECT_EQ(encode("yyy"), (std::vector<int32_t>{150}));
}

TEST(Vocabulary, RefusesRepeatedTokensAndIds) {
  Vocabulary vocabulary;
  vocabulary.reserve(4, 16);
  EXPECT_TRUE(vocabulary.add("one", 7));
  EXPECT_FALSE(vocabulary.add("one", 8));
  EXPECT_FALSE(vocabulary.add("two", 7));
  EXPECT_TRUE(vocabulary.add_hidden("one", 2));
  EXPECT_EQ(vocabulary.find("one"), 7);
  EXPECT_EQ(vocabulary.end_id(), 8);
  EXPECT_EQ(vocabulary.bytes_of(3), "");
  for (int32_t id = 100; id < 2000; ++id) EXPECT_TRUE(vocabulary.add(std::to_string(id), id));
  for (int32_t id = 100; id < 2000; ++id) EXPECT_EQ(vocabulary.find(std::to_string(id)), id);
}

TEST(MergeQueue, GivesKeysInOrder) {
  MergeQueue queue;
  std::vector<uint64_t> pushed;
  std::vector<uint64_t> popped;
  uint64_t key = 0;
  for (uint64_t i = 0; i < 5000; ++i) {
    pushed.push_back(random_u64(3, 0, i) >> (i % 50));
    queue.push(pushed.back());
    if (i % 3 == 0 && queue.pop(key)) popped.push_back(key);
  }
  const size_t before = popped.size();
  while (queue.pop(key)) popped.push_back(key);
  EXPECT_TRUE(std::is_sorted(popped.begin() + static_cast<ptrdiff_t>(before), popped.end()));
  std::sort(pushed.begin(), pushed.end());
  std::sort(popped.begin(), popped.end());
  EXPECT_EQ(pushed, popped);
}

}  // namespace
}  // namespace tokamak
