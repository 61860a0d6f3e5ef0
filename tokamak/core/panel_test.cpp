#include "tokamak/core/panel.h"

#include <cmath>

#include <gtest/gtest.h>

namespace tokamak::svg {
namespace {

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(Panel, AxesAreLabelledAtRoundValues) {
  const PanelAxis memory = linear_axis("GiB", 0.0, 81.9);
  ASSERT_EQ(memory.ticks.size(), 5U);
  EXPECT_EQ(memory.ticks.back().label, "80");
  EXPECT_DOUBLE_EQ(memory.share(40.95), 0.5);
  const PanelAxis seconds = log_axis("s", 0.5, 60.0);
  ASSERT_EQ(seconds.ticks.size(), 7U);
  EXPECT_EQ(seconds.ticks.front().label, "0.5");
  EXPECT_EQ(seconds.ticks.back().label, "50");
  EXPECT_NEAR(seconds.share(std::sqrt(30.0)), 0.5, 1e-12);
  EXPECT_EQ(log_axis("s", 0.01, 1000.0).ticks.size(), 6U) << "powers of ten alone";
  const std::string names[] = {"rank 0", "rank 8"};
  const PanelAxis ranks = name_axis("", names);
  EXPECT_DOUBLE_EQ(ranks.share(0.0), 0.25);
  EXPECT_DOUBLE_EQ(ranks.share(1.0), 0.75);
}

TEST(Panel, DrawsInSharesOfItsPage) {
  Panel panel(linear_axis("s", 0.0, 2.0), linear_axis("GiB", 0.0, 4.0), 200.0);
  panel.bar(0.5, 1.0, 0.0, 1.0, 2, "a <b>");
  panel.dot({.x = 1.0, .y = 3.0}, 1, "dot");
  panel.level(4.0, kRed, "limit");
  const std::string html = panel.html();
  EXPECT_NE(html.find("x=\"25.00%\" y=\"75.00%\" width=\"25.00%\" height=\"25.00%\"><title>a "
                      "&lt;b&gt;</title>"),
            std::string::npos)
      << html;
  EXPECT_NE(html.find("cx=\"50.00%\" cy=\"25.00%\""), std::string::npos);
  EXPECT_EQ(count(html, "http"), count(html, "http://www.w3.org/2000/svg"));
  EXPECT_EQ(html.find("viewBox"), std::string::npos) << "nothing is stretched";
}

TEST(Panel, CurvesHaveGapsAndManyBarsTakeFewBytes) {
  Panel panel(linear_axis("", 0.0, 1.0), linear_axis("", 0.0, 1.0), 100.0);
  const PlotPoint points[] = {{.x = 0.0, .y = 0.0}, {.x = 0.5, .y = NAN}, {.x = 1.0, .y = 1.0}};
  panel.curve(points, 0);
  EXPECT_NE(panel.html().find("d=\"M0 10000M10000 0\""), std::string::npos) << panel.html();
  std::vector<std::array<double, 4>> sides;
  sides.reserve(10'000);
  for (int i = 0; i < 10'000; ++i) sides.push_back({1e-4 * i, 1e-4 * i + 5e-5, 0.25, 0.5});
  const size_t before = panel.html().size();
  panel.bars(sides, 1);
  EXPECT_LT(panel.html().size() - before, 10'000U * 28U);
}

}  // namespace
}  // namespace tokamak::svg
