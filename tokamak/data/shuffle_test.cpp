#include "tokamak/data/shuffle.h"

#include <algorithm>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace tokamak {
namespace {

std::vector<int64_t> order(uint64_t seed, uint64_t epoch, int64_t n) {
  std::vector<int64_t> all;
  for (int64_t i = 0; i < n; ++i) all.push_back(shuffled(seed, epoch, n, i));
  return all;
}

TEST(Shuffle, IsAPermutationOfEverySize) {
  for (const int64_t n : {1, 2, 3, 4, 5, 7, 16, 17, 63, 64, 65, 1000, 4097}) {
    const std::vector<int64_t> all = order(1, 0, n);
    EXPECT_EQ(std::set<int64_t>(all.begin(), all.end()).size(), static_cast<size_t>(n));
    EXPECT_EQ(*std::max_element(all.begin(), all.end()), n - 1);
    EXPECT_EQ(*std::min_element(all.begin(), all.end()), 0);
  }
}

TEST(Shuffle, SeedsAndEpochsGiveOtherOrders) {
  EXPECT_EQ(order(1, 0, 100), order(1, 0, 100));
  EXPECT_NE(order(1, 0, 100), order(2, 0, 100));
  EXPECT_NE(order(1, 0, 100), order(1, 1, 100));
}

TEST(Shuffle, SpreadsEachPlaceOverAllPlaces) {
  constexpr int64_t kSize = 10;
  constexpr int kTrials = 10000;
  constexpr int kEach = kTrials / kSize;
  std::vector<int> count(kSize, 0);
  for (int epoch = 0; epoch < kTrials; ++epoch) {
    ++count[shuffled(7, static_cast<uint64_t>(epoch), kSize, 3)];
  }
  for (const int c : count) EXPECT_NEAR(c, kEach, 200);
}

TEST(Shuffle, ReachesFarWithoutMemory) {
  const int64_t n = int64_t{1} << 50;
  const int64_t place = shuffled(1, 2, n, n - 1);
  EXPECT_GE(place, 0);
  EXPECT_LT(place, n);
}

}  // namespace
}  // namespace tokamak
