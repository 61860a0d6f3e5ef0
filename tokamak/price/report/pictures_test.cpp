#include "tokamak/price/report/pictures.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace tokamak::price {
namespace {

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(MemoryPicture, WordsOfItsTwoLinesStandAtDifferentEnds) {
  const std::string figure = memory_figure({}, 1.0, 79.9e9, 80e9);
  EXPECT_NE(figure.find("text-anchor=\"start\">planned 74.4<"), std::string::npos) << figure;
  EXPECT_NE(figure.find("text-anchor=\"end\">limit 74.5<"), std::string::npos);
}

TEST(SweepPicture, NumbersMakeCurvesAndNamesMakeRows) {
  SweepPicture sweep{.key = "gpus", .values = {"8", "64", "1024"}};
  sweep.curves = {{.points = {{100.0, ""}, {0.0, "no <mesh>"}, {90.0, ""}}}};
  const std::string curves = sweep_figure(sweep);
  EXPECT_EQ(count(curves, "<circle"), 2U);
  EXPECT_EQ(count(curves, ">x<title>no &lt;mesh&gt;<"), 1U);
  EXPECT_NE(curves.find("90.0 tokens/s/GPU, 90.0 % of the first"), std::string::npos);
  EXPECT_NE(curves.find(">1024<"), std::string::npos);
  sweep.values = {"h100-published+nemo", "h200", "gb200"};
  sweep.key = "cluster";
  const std::string rows = sweep_figure(sweep);
  EXPECT_EQ(count(rows, "<circle"), 0U);
  EXPECT_EQ(count(rows, "<rect"), 2U);
  EXPECT_EQ(count(rows, "h100-published+nemo"), 1U);
}

// A step of 64 microbatches and 8 chunks has as many blocks; there are more ranks than are drawn.
TEST(TimelinePicture, IsSmallHoweverLongTheStepIs) {
  constexpr int kRanks = 512;
  constexpr int kBlocks = 2000;
  Task task;
  std::vector<int> ranks;
  std::vector<PricedSpan> spans;
  for (int r = 0; r < kRanks; ++r) {
    ranks.push_back(8 * r);
    for (int b = 0; b < kBlocks; ++b) {
      spans.push_back({.rank = r,
                       .stream = b % 3 == 0 ? 1 : 0,
                       .task = &task,
                       .microbatch = b,
                       .begin_s = b * 1e-3,
                       .end_s = (b + 0.9) * 1e-3});
    }
  }
  const auto rows = timeline_rows(spans, ranks, 2.0);
  ASSERT_EQ(rows.size(), 24U);
  EXPECT_EQ(rows.front().name, "rank 0");
  EXPECT_EQ(rows.back().name, fmt::format("rank {}", 8 * (kRanks - 1)));
  const std::string figure = timeline_figure(rows, 2.0);
  EXPECT_LT(figure.size(), 900'000U);
  EXPECT_NE(figure.find("<path"), std::string::npos);
}

}  // namespace
}  // namespace tokamak::price
