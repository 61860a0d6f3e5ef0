#include "tokamak/core/svg.h"

#include <cmath>

#include <gtest/gtest.h>

#include "tokamak/core/line_plot.h"

namespace tokamak::svg {
namespace {

TEST(Svg, EscapesWhatIsMarkupAndReplacesWhatIsNoText) {
  EXPECT_EQ(escaped("a<b>&\"c\"\n"), "a&lt;b&gt;&amp;&quot;c&quot;\n");
  EXPECT_EQ(escaped("\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82"),
            "\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82");
  EXPECT_EQ(escaped("\x1b[31m\x7f"), "?[31m?");
  EXPECT_EQ(escaped("\xc3"), "?") << "half a character";
  EXPECT_EQ(escaped("\xed\xa0\x80\xc0\xaf"), "?????") << "a surrogate, an overlong form";
}

TEST(Svg, TicksAreRoundAndFew) {
  for (const double high : {1e-9, 0.7, 1.0, 3.1, 7.0, 99.0, 12'345.0, 4e12}) {
    const auto ticks = round_ticks(0.0, high, 4);
    ASSERT_GE(ticks.size(), 2U) << high;
    EXPECT_LE(ticks.size(), 6U) << high;
    EXPECT_EQ(ticks[0], 0.0);
    EXPECT_LE(ticks.back(), high * (1.0 + 1e-9));
    const double power = std::pow(10.0, std::floor(std::log10(ticks[1]) + 1e-9));
    const double digit = std::round(ticks[1] / power);
    EXPECT_TRUE(digit == 1.0 || digit == 2.0 || digit == 5.0) << ticks[1];
  }
  EXPECT_EQ(round_ticks(2.0, 2.0, 4).size(), 1U);
}

TEST(Svg, ThinnedCurvesKeepTheirPeaks) {
  std::vector<PlotPoint> points(100'000);
  for (size_t i = 0; i < points.size(); ++i) points[i] = {.x = static_cast<double>(i), .y = 1.0};
  points[77'777].y = 9.0;
  points[12'345].y = -3.0;
  const auto some = thinned(points, 500);
  EXPECT_LE(some.size(), 750U);
  double low = 0.0;
  double high = 0.0;
  for (size_t i = 0; i < some.size(); ++i) {
    low = std::min(low, some[i].y);
    high = std::max(high, some[i].y);
    if (i > 0) {
      EXPECT_GT(some[i].x, some[i - 1].x);
    }
  }
  EXPECT_EQ(low, -3.0);
  EXPECT_EQ(high, 9.0);
}

TEST(Svg, PlotsOfOddValues) {
  EXPECT_EQ(draw(LinePlot{}), "");
  EXPECT_EQ(draw(LinePlot{.curves = {{.points = {{.x = 1.0, .y = NAN}}}}}), "");
  for (const auto& ys : std::vector<std::vector<double>>{
           {5.0}, {0.0, 0.0}, {1.0, NAN, 2.0}, {1.0, 1.0, 1e300}, {-1.0, 1e9}, {1e-300, 1e-299}}) {
    LinePlot plot{.curves = {{.name = "a", .color = "#000"}}};
    for (const double y : ys)
      plot.curves[0].points.push_back(
          {.x = static_cast<double>(plot.curves[0].points.size()), .y = y});
    const std::string drawn = draw(plot);
    EXPECT_NE(drawn.find("<path"), std::string::npos);
    EXPECT_EQ(drawn.find("nan"), std::string::npos) << drawn;
    EXPECT_EQ(drawn.find("inf"), std::string::npos) << drawn;
  }
}

TEST(Svg, NumbersAreShort) {
  EXPECT_EQ(short_number(950.0), "950");
  EXPECT_EQ(short_number(12'000.0), "12k");
  EXPECT_EQ(short_number(3.4e6), "3.4M");
  EXPECT_EQ(short_number(2.5e9), "2.5G");
  EXPECT_EQ(short_number(0.0001234), "0.0001234");
}

}  // namespace
}  // namespace tokamak::svg
