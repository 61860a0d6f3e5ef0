#include "tokamak/price/report/pictures.h"

#include <cmath>
#include <map>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace tokamak::price {
namespace {

double number_of(const std::string& svg, size_t from, const std::string& name) {
  return std::stod(svg.substr(svg.find(name + "=\"", from) + name.size() + 2));
}

TEST(MemoryPicture, WordsOfCloseLinesDoNotCoverEachOther) {
  const double limit = 80e9;
  for (const double planned : {10e9, 79.5e9, 80e9 - 1.0, 80.5e9, 200e9}) {
    const std::string svg = memory_svg({}, 1.0, planned, limit);
    const auto y_of = [&](const std::string& words) {
      return number_of(svg, svg.rfind("<text", svg.find(words)), "y");
    };
    const double below =
        planned < limit ? y_of(" planned<") - y_of(" limit<") : y_of(" limit<") - y_of(" planned<");
    EXPECT_GE(below, 11.0) << planned;
    EXPECT_LT(y_of(" planned<"), number_of(svg, 0, "height"));
  }
}

TEST(SweepPicture, ValuesDoNotCoverEachOther) {
  for (const size_t count : {1, 2, 9, 40}) {
    std::vector<std::string> values;
    for (size_t i = 0; i < count; ++i) values.push_back(fmt::format("h100-published+nemo+{}", i));
    SweepCurve curve;
    curve.points.assign(count, {.device_tokens_per_s = 1.0});
    const std::string svg = sweep_svg("cluster", values, {&curve, 1});
    const double height = number_of(svg, 0, "height");
    std::map<double, double> last_x;  // by row
    for (const std::string& value : values) {
      const size_t at = svg.rfind("<text", svg.find(fmt::format(">{}<", value)));
      const double x = number_of(svg, at, "x");
      const double y = number_of(svg, at, "y");
      EXPECT_LT(y, height);
      const auto [row, is_first] = last_x.emplace(y, x);
      if (!is_first) {
        EXPECT_GT(x - row->second, 6.0 * static_cast<double>(value.size())) << value;
      }
      row->second = x;
    }
    if (count <= 2) {
      EXPECT_EQ(last_x.size(), 1U) << "no more rows than it takes";
    }
  }
}

}  // namespace
}  // namespace tokamak::price
