#include "tokamak/price/report/pictures.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/core/test_page.h"

namespace tokamak::price {
namespace {

Json chart_of(const std::string& page) {
  return page_data(page).at("blocks").back().at("chart");
}

size_t count_points(const Json& chart, const std::string& kind) {
  size_t found = 0;
  for (const Json& series : chart.at("series"))
    if (series.at("kind") == kind) found += series.at("points").size();
  return found;
}

TEST(SweepPicture, NumbersMakeCurvesAndNamesMakeRows) {
  SweepPicture sweep{.key = "gpus", .values = {"8", "64", "1024"}};
  sweep.curves = {{.points = {{100.0, ""}, {0.0, "no <mesh>"}, {90.0, ""}}}};
  const Json curves = chart_of(sweep_page("", "", sweep));
  EXPECT_EQ(count_points(curves, "dots"), 3U) << "two prices, one cross";
  EXPECT_EQ(curves.at("series").back().at("points")[0][2], "no <mesh>");
  EXPECT_EQ(curves.at("series")[2].at("points")[1][2],
            "gpus 1024: 90.0 tokens/s/GPU, 90.0 % of the first");
  EXPECT_EQ(curves.at("x").at("log"), true);
  sweep.values = {"h100-published+nemo", "h200", "gb200"};
  sweep.key = "cluster";
  const Json rows = chart_of(sweep_page("", "", sweep));
  EXPECT_EQ(count_points(rows, "dots"), 0U);
  EXPECT_EQ(count_points(rows, "bars"), 3U);
  EXPECT_EQ(rows.at("y").at("labels")[0], "h100-published+nemo");
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
  EXPECT_LT(step_page({.step = {.seconds = 2.0}}, rows, {}).size(), 1'200'000U);
}

}  // namespace
}  // namespace tokamak::price
