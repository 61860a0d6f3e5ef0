#include "tokamak/core/page.h"

#include <cmath>

#include <gtest/gtest.h>

#include "tokamak/core/test_page.h"

namespace tokamak {
namespace {

TEST(Page, IsTheTemplateWithChartJsAndTheData) {
  const std::string page = html_page("a <b>", {{{"text", "</script><script>x"}, {"pre", "\xff"}}});
  EXPECT_NE(page.find("Chart.js v"), std::string::npos) << "its licence";
  EXPECT_EQ(page.find("{{"), page.find("{{\"")) << "no place is left open";
  EXPECT_EQ(page.find("</script><script>x"), std::string::npos);
  const Json data = page_data(page);
  EXPECT_EQ(data.at("title"), "a <b>");
  EXPECT_EQ(data.at("blocks")[0].at("text"), "</script><script>x");
  EXPECT_EQ(data.at("blocks")[0].at("pre"), "\xef\xbf\xbd");
  EXPECT_LT(page.size(), 300'000U);
}

TEST(Page, LoadsNothing) {
  const std::string page = html_page("", OrderedJson::array());
  for (const char* tag : {" src=", "<link", "@import", "url(", "XMLHttpRequest", "import("})
    EXPECT_EQ(page.find(tag), std::string::npos) << tag;
  // A page that `report --watch` serves asks its own server alone.
  const size_t first = page.find("fetch(");
  EXPECT_EQ(page.compare(first, 13, "fetch(\"data\")"), 0);
  EXPECT_EQ(page.find("fetch(", first + 1), std::string::npos);
}

TEST(Page, NumbersAreShort) {
  EXPECT_EQ(rounded(1.0 / 3.0).dump(), "0.33333");
  EXPECT_TRUE(rounded(NAN).is_null());
  EXPECT_EQ(short_number(950.0), "950");
  EXPECT_EQ(short_number(12'000.0), "12k");
  EXPECT_EQ(short_number(3.4e6), "3.4M");
  EXPECT_EQ(short_number(2.5e9), "2.5G");
  EXPECT_EQ(short_number(0.0001234), "0.0001234");
}

TEST(Page, ThinnedCurvesKeepTheirPeaks) {
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

}  // namespace
}  // namespace tokamak
