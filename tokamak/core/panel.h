// Plots that stretch with their page: what is drawn takes the width there is, words keep their
// size. All pages of prices and searches use them, so that their axes and colours are alike.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokamak/core/line_plot.h"

namespace tokamak::svg {

/// How many colours a panel knows, by number; pages say what they look like in light and dark.
inline constexpr int kNumPanelColors = 8;
inline constexpr int kRed = 3;   ///< what limits, or what went wrong
inline constexpr int kGrey = 7;  ///< what is only there to compare

struct PanelTick {
  double value = 0.0;
  std::string label;
};

/// A range of values and where it is labelled.
struct PanelAxis {
  std::string name;
  double low = 0.0;
  double high = 1.0;
  bool is_log = false;
  bool has_lines = true;  ///< across the panel, at the labels
  std::vector<PanelTick> ticks;

  /// Returns where a value lies, from 0 to 1 in the range.
  double share(double value) const;
};

/// Returns the axis with about `num_ticks` round labels. REQUIRES: low < high.
PanelAxis linear_axis(std::string name, double low, double high, int num_ticks = 5);

/// Returns a logarithmic axis with labels at 1, 2 and 5 times powers of ten, or at the powers alone
/// where it spans more than two. REQUIRES: 0 < low < high.
PanelAxis log_axis(std::string name, double low, double high);

/// Returns an axis with these labels at 0, 1, 2, ...; half a step of room is left at both ends.
PanelAxis name_axis(std::string name, std::span<const std::string> labels);

class Panel {
 public:
  /// `height` is in pixels, without labels.
  Panel(PanelAxis x, PanelAxis y, double height);

  /// Leaves the left labels room for so many characters, so that panels below each other align.
  void set_left_characters(size_t count) { left_characters_ = count; }

  /// Labels the right side too; the axis spans what the left one does.
  void set_right(PanelAxis right) { right_ = std::move(right); }

  /// Draws a rectangle from (x0, y0) to (x1, y1); a pointer above it shows `title`.
  void bar(double x0, double x1, double y0, double y1, int color, std::string_view title = {});

  /// Draws many rectangles of one colour as one shape, in few bytes.
  void bars(std::span<const std::array<double, 4>> sides, int color);

  /// Draws a dot of this radius in pixels, empty in the middle if it is hollow.
  void dot(PlotPoint at, int color, std::string_view title, double radius = 4.0,
           bool is_hollow = false);

  /// Draws a cross where something has no value; a pointer above it shows why.
  void cross(PlotPoint at, int color, std::string_view title);

  /// Draws a line, with a gap where y is not finite.
  void curve(std::span<const PlotPoint> points, int color, bool is_dashed = false);

  /// Fills between two curves with the same x values.
  void area(std::span<const PlotPoint> lower, std::span<const PlotPoint> upper, int color);

  /// Draws a line at a height across the panel, with words above one of its ends.
  void level(double y, int color, std::string_view words, bool is_left = false);

  /// Writes words to the right of a point, or above it.
  void words(PlotPoint at, std::string_view words, bool is_above = false);

  /// Adds a name beside its colour, below the panel.
  void legend(std::string_view name, int color);

  /// Returns the figure as HTML for a page with panel_style().
  std::string html() const;

 private:
  std::string x_at(double value) const;
  std::string y_at(double value) const;
  std::string path_of(std::span<const PlotPoint> points) const;

  PanelAxis x_, y_, right_;
  double height_;
  size_t left_characters_ = 0;
  std::string stretched_;  // paths, which lie below all else
  std::string drawn_;
  std::string legend_;
};

/// Returns the style of pages with panels, for svg::page().
std::string_view panel_style();

}  // namespace tokamak::svg
