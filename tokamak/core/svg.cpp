#include "tokamak/core/svg.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace tokamak::svg {
namespace {

// Returns the bytes of the UTF-8 character that `words` begin with, or 0 where they begin with
// none.
size_t character_bytes(std::string_view words) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(words[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return (lead >= 0x20 && lead != 0x7f) || lead == '\n' || lead == '\t' ? 1 : 0;
  const size_t count = lead >= 0xc2 && lead < 0xe0   ? 2
                       : lead >= 0xe0 && lead < 0xf0 ? 3
                       : lead >= 0xf0 && lead < 0xf5 ? 4
                                                     : 0;
  if (count == 0 || words.size() < count) return 0;
  for (size_t i = 1; i < count; ++i) {
    if ((byte(i) & 0xc0U) != 0x80) return 0;
  }
  // Overlong forms, surrogates, and what lies beyond Unicode.
  const unsigned second = byte(1);
  if ((lead == 0xe0 && second < 0xa0) || (lead == 0xed && second >= 0xa0) ||
      (lead == 0xf0 && second < 0x90) || (lead == 0xf4 && second >= 0x90))
    return 0;
  return count;
}

constexpr std::string_view kStyle =
    ":root{color-scheme:light dark;--line:#ccc;--faint:#666;--paper:#fff;--ink:#222}"
    "@media(prefers-color-scheme:dark){:root{--line:#444;--faint:#999;--paper:#16181c;--ink:#ddd}}"
    "body{font-family:sans-serif;margin:2em;background:var(--paper);color:var(--ink)}"
    "@media(max-width:600px){body{margin:1em}}"
    "pre{font-size:13px;overflow-x:auto}h1{font-size:1.5em;overflow-wrap:anywhere}"
    "h2{font-size:1.15em;margin-top:1.5em}svg{max-width:100%;height:auto}";

}  // namespace

std::string escaped(std::string_view words) {
  std::string out;
  while (!words.empty()) {
    const size_t count = character_bytes(words);
    const std::string_view character = words.substr(0, std::max<size_t>(count, 1));
    words.remove_prefix(character.size());
    if (count == 0) {
      out += '?';
    } else if (character == "<") {
      out += "&lt;";
    } else if (character == ">") {
      out += "&gt;";
    } else if (character == "&") {
      out += "&amp;";
    } else if (character == "\"") {
      out += "&quot;";
    } else {
      out += character;
    }
  }
  return out;
}

std::string begin(double width, double height) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
      "width=\"{0:.0f}\" height=\"{1:.0f}\" font-family=\"sans-serif\" font-size=\"11\" "
      "fill=\"currentColor\">\n",
      width, height);
}

std::string rect(double x, double y, double width, double height, std::string_view color,
                 std::string_view title) {
  const std::string at =
      fmt::format("<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\"",
                  x, y, width, height, color);
  return title.empty() ? at + "/>\n"
                       : fmt::format("{}><title>{}</title></rect>\n", at, escaped(title));
}

std::string text(double x, double y, std::string_view words, std::string_view anchor) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor,
                     escaped(words));
}

double legend_width(std::string_view name) {
  return 30.0 + kCharacter * static_cast<double>(name.size());
}

std::string legend_entry(double x, double y, std::string_view color, std::string_view name) {
  return rect(x, y, 10.0, 10.0, color) + text(x + 14.0, y + 9.0, name);
}

double round_step(double range, int num_ticks) {
  const double about = range / num_ticks;
  if (!(about > 0.0) || !std::isfinite(about)) return 1.0;
  const double power = std::pow(10.0, std::floor(std::log10(about)));
  const double factor = about / power;
  return power * (factor <= 1.0 ? 1.0 : factor <= 2.0 ? 2.0 : factor <= 5.0 ? 5.0 : 10.0);
}

std::vector<double> round_ticks(double low, double high, int num_ticks) {
  const double step = round_step(high - low, num_ticks);
  std::vector<double> ticks;
  // What rounding puts a hair outside still counts.
  const double slack = 1e-9 * step;
  for (double i = std::ceil((low - slack) / step); i * step <= high + slack; ++i)
    ticks.push_back(i == 0.0 ? 0.0 : i * step);
  return ticks;
}

std::string value_axis(const Frame& frame, double top, double unit, std::string_view name) {
  constexpr int kAxisTicks = 4;
  std::string svg;
  for (const double value : round_ticks(0.0, top / unit, kAxisTicks)) {
    const double y = frame.height * (1.0 - value * unit / top);
    svg += rect(frame.left, y, frame.width, 0.5, "#8888") +
           text(frame.left - 6.0, y + 4.0, fmt::format("{:g}", value), "end");
  }
  return svg + text(0.0, frame.height + 20.0, name);
}

std::string page(std::string_view title, std::string_view body, std::string_view style) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
      "<title>{0}</title>\n<style>{1}{2}</style></head>\n<body><h1>{0}</h1>\n{3}</body></html>\n",
      escaped(title), kStyle, style, body);
}

}  // namespace tokamak::svg
