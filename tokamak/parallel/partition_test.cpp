#include "tokamak/parallel/partition.h"

#include <gtest/gtest.h>

namespace tokamak {
namespace {

int64_t total(const Ranges& ranges) {
  int64_t sum = 0;
  for (const Range& r : ranges) sum += r.size();
  return sum;
}

TEST(Partition, deals_remainders_to_the_first) {
  EXPECT_EQ(split_evenly(7, 3, 1), (Ranges{{0, 3}, {3, 5}, {5, 7}}));
  EXPECT_EQ(split_evenly(8, 4, 2), (Ranges{{0, 2}, {2, 4}, {4, 6}, {6, 8}}));
  // The last unit may be short.
  EXPECT_EQ(split_evenly(7, 2, 2), (Ranges{{0, 4}, {4, 7}}));
}

TEST(Partition, aligns_large_uneven_cuts) {
  // GPT-2's vocabulary over 2, 3 and 8 ranks: all but the last at multiples of 128.
  for (const int n : {2, 3, 8}) {
    const Ranges ranges = split_aligned(50257, n);
    ASSERT_EQ(ranges.size(), static_cast<size_t>(n));
    EXPECT_EQ(total(ranges), 50257);
    for (size_t r = 1; r < ranges.size(); ++r) {
      EXPECT_EQ(ranges[r].begin, ranges[r - 1].end);
      EXPECT_EQ(ranges[r].begin % 128, 0);
    }
  }
  EXPECT_EQ(split_aligned(128256, 8), split_evenly(128256, 8, 128256 / 8));
  EXPECT_EQ(total(split_aligned(61, 4)), 61);
}

// Every rank has query heads, all of which read its own key-value heads in groups of one size.
TEST(Partition, keeps_query_heads_with_their_key_value_heads) {
  for (const auto& [heads, kv_heads] :
       std::vector<std::pair<int, int>>{{32, 8}, {6, 2}, {6, 3}, {6, 6}, {8, 1}, {5, 5}, {12, 4}}) {
    const int group = heads / kv_heads;
    for (int n = 1; n <= heads; ++n) {
      const HeadRanges split = split_heads(heads, kv_heads, n);
      ASSERT_EQ(split.heads.size(), static_cast<size_t>(n));
      EXPECT_EQ(total(split.heads), heads) << heads << "/" << kv_heads << " over " << n;
      for (size_t r = 0; r < split.heads.size(); ++r) {
        const Range& q = split.heads[r];
        const Range& kv = split.kv_heads[r];
        EXPECT_GT(q.size(), 0);
        EXPECT_GE(q.begin / group, kv.begin);
        EXPECT_LE((q.end - 1) / group, kv.end - 1);
        EXPECT_EQ(q.size() % kv.size(), 0);
      }
      EXPECT_EQ(split.kv_heads.front().begin, 0);
      EXPECT_EQ(split.kv_heads.back().end, kv_heads);
    }
  }
}

TEST(Partition, finds_replicas) {
  const Ranges ranges = split_heads(6, 2, 5).kv_heads;
  EXPECT_EQ(replicas_of(ranges, 0), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(replicas_of(ranges, 4), (std::vector<int>{3, 4}));
}

}  // namespace
}  // namespace tokamak
