// What all pictures and pages of this program are drawn with: SVG whose text takes the colour of
// the page around it, and pages for light and dark, without a script, that load nothing.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tokamak::svg {

/// Colours of curves, in the order in which they are taken; each is readable on white and on black.
inline constexpr std::string_view kCurveColors[] = {"#4f86c6", "#e07a6a", "#7bb274", "#9c7bc1",
                                                    "#e0b04c", "#8a8a8a", "#3aa6a0"};
inline constexpr size_t kNumCurveColors = std::size(kCurveColors);

inline constexpr double kTextRow = 16.0;   ///< the height of a line of text, in pixels
inline constexpr double kCharacter = 6.5;  ///< the mean width of a character, at most

/// Returns `words` for text and attributes of SVG and HTML: bytes that are not UTF-8 and control
/// characters but line feeds and tabs become "?".
std::string escaped(std::string_view words);

/// Returns the head of a picture that has these pixels, and in a narrower page fewer.
std::string begin(double width, double height);

/// `title` is shown under the pointer; it is escaped here, as all words are.
std::string rect(double x, double y, double width, double height, std::string_view color,
                 std::string_view title = {});
std::string text(double x, double y, std::string_view words, std::string_view anchor = "start");

/// Returns the width of a name with its colour.
double legend_width(std::string_view name);
std::string legend_entry(double x, double y, std::string_view color, std::string_view name);

/// Returns the least 1, 2 or 5 times a power of ten that divides `range` into at most about
/// `num_ticks` parts; 1 where the range is not positive.
double round_step(double range, int num_ticks);

/// Returns the round values within [low, high], about `num_ticks` of them.
std::vector<double> round_ticks(double low, double high, int num_ticks);

/// Where a plot lies in its picture; y grows downwards from its top, which is at 0.
struct Frame {
  double left = 0.0;
  double width = 0.0;
  double height = 0.0;
};

/// Draws lines and labels of a plot from 0 to `top`, in `unit`, and below them the unit's name.
std::string value_axis(const Frame& frame, double top, double unit, std::string_view name);

/// Returns a page of `body`, which is HTML, below its title. `style` is CSS beside that of all
/// pages: var(--line) is the colour of lines, var(--faint) that of lesser text.
std::string page(std::string_view title, std::string_view body, std::string_view style = {});

}  // namespace tokamak::svg
