// Pages for a browser: data as JSON in one template, pages/page.html, which draws it with the
// Chart.js that it carries; nothing is fetched. Include it in .cpp files only.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tokamak/core/json.h"

namespace tokamak {

// Colours of series, by number: blue, green, amber, red, purple, teal, brown, grey.
inline constexpr int kRed = 3;   ///< what limits, or what went wrong
inline constexpr int kGrey = 7;  ///< what is only there to compare

struct PlotPoint {
  double x = 0.0;
  double y = 0.0;  ///< the line has a gap where this is not finite
};

/// Returns the number with five significant digits, or null where it is not finite.
OrderedJson rounded(double value);

/// Returns [x, y] of each point.
OrderedJson points_json(const std::vector<PlotPoint>& points);

/// Returns at most `most` points, or little more, with the lowest and highest of each stretch.
std::vector<PlotPoint> thinned(const std::vector<PlotPoint>& points, size_t most);

/// Returns "950", "12k", "3.4M".
std::string short_number(double value);

/// Returns a page of `blocks` below its title. A block has one of these members:
///   heading, text, pre   a text;
///   table                {columns, rows, long: the column whose words are broken into lines};
///   chart, charts        one, or several that stand side by side where the page is wide:
///     {title, more, none: what to say without a point, height in pixels, legend, right: room in
///      pixels, bars: whether the pointer has to be above what it is to name, x, y, series}
///     x and y are {name, min, max, log, log_above: logarithmic where the highest value is this
///     many
///      medians, ticks, or labels of the values 0, 1, ... from the top}.
/// A series is {name, color, kind, points}:
///   "line", "area" (between it and the series before)   [x, y]; dashed;
///   "dots"   [x, y, title]; style, radius, rotation, hollow, marks: y is a share of the height;
///   "bars"   horizontal, [from, to, y, title]; thickness in pixels, hollow.
/// With `words` titles are written next to bars and above dots.
/// A live page asks the server that it came from for `page_data` at /data every two seconds.
std::string html_page(std::string_view title, const OrderedJson& blocks, bool is_live = false);

/// Returns title and blocks as the JSON that a live page asks for.
std::string page_data(std::string_view title, const OrderedJson& blocks);

}  // namespace tokamak
