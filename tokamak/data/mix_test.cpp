#include "tokamak/data/mix.h"

#include <cmath>
#include <vector>

#include "tokamak/data/loader.h"
#include "tokamak/data/test_files.h"

namespace tokamak {
namespace {

TEST(Mix, ReadsWeightsAndPaths) {
  const auto mix = parse_mix("0.7 /data/a 0.3  my folder/b");
  ASSERT_EQ(mix.size(), 2U);
  EXPECT_EQ(mix[0].path, "/data/a");
  EXPECT_EQ(mix[0].weight, 700000);
  EXPECT_EQ(mix[1].path, "my folder/b");
  EXPECT_EQ(mix[1].weight, 300000);
}

TEST(Mix, OnePathMayHoldSpacesOrBeANumber) {
  EXPECT_EQ(parse_mix("my data/file 2")[0].path, "my data/file 2");
  EXPECT_EQ(parse_mix("2024")[0].path, "2024");
}

TEST(Mix, APathThatExistsIsNoMix) {
  const TestFolder folder;
  const std::string path = folder.write("2024 crawl.u16", "ab");
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(std::filesystem::path(path).parent_path());
  EXPECT_EQ(parse_mix("2024 crawl.u16")[0].path, "2024 crawl.u16");
  EXPECT_EQ(parse_mix("2024 other.u16")[0].path, "other.u16");
  const auto reason = missing_data({.dataset = "tokens", .path = "2024 other.u16"});
  std::filesystem::current_path(before);
  EXPECT_EQ(reason.value_or(""),
            "no such file or folder: other.u16, in the weighted mix \"2024 other.u16\"");
}

TEST(Mix, RefusesBadWeights) {
  EXPECT_ERROR(parse_mix("0.7 A 0.3"), "wanted a path after each weight");
  EXPECT_ERROR(parse_mix("0.7 0.3 A"), "wanted a path after each weight");
  EXPECT_ERROR(parse_mix("0 A 1 B"), "wanted more than 0");
  EXPECT_ERROR(parse_mix("0.1234567 A 1 B"), "six digits");
  EXPECT_ERROR(Mix({1, 2'000'000}, 0), "smallest weight");
}

TEST(Mix, CountsEachSourceWithoutGaps) {
  Mix mix({40, 44, 3, 2, 10, 1}, 5);
  std::vector<int64_t> next(6, 0);
  for (int64_t i = 0; i < 5000; ++i) {
    for (size_t k = 0; i % 997 == 0 && k < 6; ++k) EXPECT_EQ(mix.served_before(k, i), next[k]);
    const Mix::Place place = mix.at(i);
    EXPECT_TRUE(i % 997 != 0 || mix.window_of(place.source, place.index) == i);
    EXPECT_EQ(place.index, next[place.source]++);
  }
}

TEST(Mix, KeepsProportionsEverywhere) {
  Mix mix({7, 3}, 0);
  int64_t first = 0;
  for (int64_t i = 1; i <= 100'000; ++i) {
    first += mix.at(i - 1).source == 0 ? 1 : 0;
    EXPECT_LE(std::abs(static_cast<double>(first) - 0.7 * static_cast<double>(i)), 4.0) << i;
  }
  EXPECT_EQ(first, 70'000);
}

TEST(Mix, SeeksFarAtOnce) {
  Mix near({7, 3}, 3);
  Mix far({7, 3}, 3);
  const int64_t window = 1'000'000'000'003;
  const Mix::Place place = far.at(window);
  near.at(0);
  EXPECT_EQ(near.at(window).index, place.index);
  EXPECT_NEAR(static_cast<double>(far.served_before(0, window)), 0.7 * static_cast<double>(window),
              4.0);
}

}  // namespace
}  // namespace tokamak
