// Plots of many points over steps, in small pictures that stand side by side on a page.
#pragma once

#include <string>
#include <vector>

namespace tokamak::svg {

struct PlotPoint {
  double x = 0.0;
  double y = 0.0;  ///< the line has a gap where this is not finite
};

struct PlotCurve {
  std::string name;
  std::string color;
  std::vector<PlotPoint> points;
  bool is_dashed = false;
};

/// Something that happened at x: a small triangle on the axis.
struct PlotMark {
  double x = 0.0;
  std::string color;
  std::string title;
};

struct LinePlot {
  std::vector<PlotCurve> curves;
  std::vector<PlotMark> marks;
  bool starts_at_zero = false;
  double log_above = 50.0;   ///< the axis is logarithmic if the highest value is more medians
  size_t most_points = 600;  ///< of a curve; more are thinned
};

/// Returns at most `most` points, or little more, with the lowest and highest of each stretch.
std::vector<PlotPoint> thinned(const std::vector<PlotPoint>& points, size_t most);

/// Draws the plot. Its y axis can be logarithmic only where all values are positive. Returns ""
/// where no value is finite.
std::string draw(const LinePlot& plot);

/// Shares of values by size, from the same edges for all curves.
struct Histogram {
  struct Part {
    std::string name;
    std::string color;
    std::vector<PlotPoint> weighted;  ///< x: the value, y: its weight
  };

  std::vector<Part> parts;
};

/// Draws what share of each part's weight lies in each of 40 bins; values above the 99.5 %
/// quantile count in the last one. Returns "" where no value is finite.
std::string draw(const Histogram& histogram);

/// Returns "950", "12k", "3.4M".
std::string short_number(double value);

}  // namespace tokamak::svg
