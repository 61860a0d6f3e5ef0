#include "tokamak/core/panel.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "tokamak/core/svg.h"

namespace tokamak::svg {
namespace {

// Paths know no percent, so they have units of their own, which the page stretches.
constexpr double kUnits = 10'000.0;

// Colours by number: blue, green, amber, red, purple, teal, brown, grey; then the same on black.
constexpr std::string_view kPanelStyle =
    ":root{--c0:#3f7fc9;--c1:#5aa55f;--c2:#d9a033;--c3:#d1553f;--c4:#8d68b8;--c5:#2f9e99;"
    "--c6:#a0714f;--c7:#9a9a9a;--grid:#e3e3e3}"
    "@media(prefers-color-scheme:dark){:root{--c0:#6ba3e6;--c1:#7cc281;--c2:#e8bb5b;--c3:#ea7d69;"
    "--c4:#b192db;--c5:#55c0ba;--c6:#c49a78;--c7:#7d7d7d;--grid:#33363c}}"
    ".f0{fill:var(--c0)}.f1{fill:var(--c1)}.f2{fill:var(--c2)}.f3{fill:var(--c3)}"
    ".f4{fill:var(--c4)}.f5{fill:var(--c5)}.f6{fill:var(--c6)}.f7{fill:var(--c7)}"
    ".s0{stroke:var(--c0)}.s1{stroke:var(--c1)}.s2{stroke:var(--c2)}.s3{stroke:var(--c3)}"
    ".s4{stroke:var(--c4)}.s5{stroke:var(--c5)}.s6{stroke:var(--c6)}.s7{stroke:var(--c7)}"
    ".panel{margin:0 0 1.6em;max-width:1160px;font-size:12px}"
    ".panel .name{color:var(--faint);min-height:1.4em;display:flex;justify-content:space-between}"
    ".panel .plot{display:grid;grid-template-columns:var(--left) 1fr var(--right)}"
    ".panel .y{position:relative;color:var(--faint)}"
    ".panel .y span{position:absolute;right:.6em;transform:translateY(-50%);white-space:nowrap}"
    ".panel .y+.drawn+.y span{right:auto;left:.6em}"
    ".panel .drawn{min-width:0}.panel .drawn>svg{display:block;width:100%;overflow:visible}"
    ".panel .x{position:relative;height:1.6em;color:var(--faint);grid-column:2}"
    ".panel .x span{position:absolute;top:.3em;transform:translateX(-50%);white-space:nowrap}"
    ".panel .grid{stroke:var(--grid);stroke-width:1}.panel .edge{stroke:var(--line)}"
    ".panel .halo{paint-order:stroke;stroke:var(--paper);stroke-width:3px;stroke-linejoin:round}"
    ".panel path{vector-effect:non-scaling-stroke}"
    ".panel .key{display:flex;flex-wrap:wrap;gap:.2em 1.2em;margin-top:.5em}"
    ".panel .key span{display:inline-flex;align-items:center;gap:.4em}"
    ".panel .key i{width:.8em;height:.8em;border-radius:2px;flex:none}"
    "@media(max-width:600px){.panel .odd{display:none}}";

std::string percent(double share) {
  return fmt::format("{:.2f}%", 100.0 * share);
}

std::string title_of(std::string_view title) {
  return title.empty() ? "" : fmt::format("<title>{}</title>", escaped(title));
}

// Every second label gives way on narrow pages; where labels are few, all stay.
std::string_view when_narrow(size_t i, size_t count) {
  constexpr size_t kFew = 5;
  return count > kFew && i % 2 == 1 ? " class=\"odd\"" : "";
}

// Returns the room that an axis's labels need, in units of their size.
double label_width(const PanelAxis& axis, size_t least = 0) {
  size_t longest = least;
  for (const PanelTick& tick : axis.ticks) longest = std::max(longest, tick.label.size());
  return longest == 0 ? 0.8 : 1.2 + 0.62 * static_cast<double>(longest);
}

std::string labels(const PanelAxis& axis) {
  std::string html;
  for (const PanelTick& tick : axis.ticks)
    html += fmt::format("<span style=\"top:{}\">{}</span>", percent(1.0 - axis.share(tick.value)),
                        escaped(tick.label));
  return html;
}

}  // namespace

double PanelAxis::share(double value) const {
  if (is_log) return std::log(value / low) / std::log(high / low);
  return (value - low) / (high - low);
}

PanelAxis linear_axis(std::string name, double low, double high, int num_ticks) {
  PanelAxis axis{.name = std::move(name), .low = low, .high = high};
  for (const double value : round_ticks(low, high, num_ticks))
    axis.ticks.push_back({.value = value, .label = fmt::format("{:.6g}", value)});
  return axis;
}

PanelAxis log_axis(std::string name, double low, double high) {
  PanelAxis axis{.name = std::move(name), .low = low, .high = high, .is_log = true};
  const bool is_wide = high / low > 150.0;
  for (int e = static_cast<int>(std::floor(std::log10(low))); std::pow(10.0, e) <= high; ++e) {
    for (const double digit : {1.0, 2.0, 5.0}) {
      const double value = digit * std::pow(10.0, e);
      if (value < 0.999 * low || value > 1.001 * high || (is_wide && digit != 1.0)) continue;
      axis.ticks.push_back({.value = value, .label = fmt::format("{:.6g}", value)});
    }
  }
  return axis;
}

PanelAxis name_axis(std::string name, std::span<const std::string> labels) {
  PanelAxis axis{.name = std::move(name),
                 .low = -0.5,
                 .high = static_cast<double>(std::max<size_t>(labels.size(), 1)) - 0.5,
                 .has_lines = false};
  for (size_t i = 0; i < labels.size(); ++i)
    axis.ticks.push_back({.value = static_cast<double>(i), .label = labels[i]});
  return axis;
}

Panel::Panel(PanelAxis x, PanelAxis y, double height)
    : x_(std::move(x)), y_(std::move(y)), height_(height) {}

std::string Panel::x_at(double value) const {
  return percent(x_.share(value));
}

std::string Panel::y_at(double value) const {
  return percent(1.0 - y_.share(value));
}

void Panel::bar(double x0, double x1, double y0, double y1, int color, std::string_view title) {
  drawn_ +=
      fmt::format("<rect class=\"f{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\">{}</rect>\n",
                  color, x_at(x0), y_at(y1), percent(x_.share(x1) - x_.share(x0)),
                  percent(y_.share(y1) - y_.share(y0)), title_of(title));
}

void Panel::bars(std::span<const std::array<double, 4>> sides, int color) {
  std::string path;
  for (const auto& [x0, x1, y0, y1] : sides) {
    const double left = std::round(kUnits * x_.share(x0));
    const double right = std::max(std::round(kUnits * x_.share(x1)), left + 1.0);
    const double top = std::round(kUnits * (1.0 - y_.share(y1)));
    const double bottom = std::round(kUnits * (1.0 - y_.share(y0)));
    path += fmt::format("M{:.0f} {:.0f}h{:.0f}v{:.0f}h{:.0f}z", left, top, right - left,
                        bottom - top, left - right);
  }
  if (!path.empty()) stretched_ += fmt::format("<path class=\"f{}\" d=\"{}\"/>\n", color, path);
}

void Panel::dot(PlotPoint at, int color, std::string_view title, double radius, bool is_hollow) {
  drawn_ += fmt::format("<circle class=\"{}{}\" cx=\"{}\" cy=\"{}\" r=\"{:g}\"{}>{}</circle>\n",
                        is_hollow ? 's' : 'f', color, x_at(at.x), y_at(at.y), radius,
                        is_hollow ? " fill=\"none\" stroke-width=\"1.5\"" : "", title_of(title));
}

void Panel::cross(PlotPoint at, int color, std::string_view title) {
  drawn_ += fmt::format("<text class=\"f{}\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">x{}</text>\n",
                        color, x_at(at.x), y_at(at.y), title_of(title));
}

std::string Panel::path_of(std::span<const PlotPoint> points) const {
  std::string path;
  bool is_broken = true;
  for (const PlotPoint& p : points) {
    if (!std::isfinite(p.y)) {
      is_broken = true;
      continue;
    }
    path += fmt::format("{}{:.0f} {:.0f}", is_broken ? 'M' : 'L', kUnits * x_.share(p.x),
                        kUnits * (1.0 - y_.share(p.y)));
    is_broken = false;
  }
  return path;
}

void Panel::curve(std::span<const PlotPoint> points, int color, bool is_dashed) {
  stretched_ += fmt::format(
      "<path class=\"s{}\" d=\"{}\" fill=\"none\" stroke-width=\"1.6\" stroke-linejoin=\"round\"{}"
      "/>\n",
      color, path_of(points), is_dashed ? " stroke-dasharray=\"5 4\"" : "");
}

void Panel::area(std::span<const PlotPoint> lower, std::span<const PlotPoint> upper, int color) {
  std::vector<PlotPoint> around(upper.begin(), upper.end());
  around.insert(around.end(), lower.rbegin(), lower.rend());
  stretched_ += fmt::format("<path class=\"f{}\" d=\"{}Z\"/>\n", color, path_of(around));
}

void Panel::level(double y, int color, std::string_view words, bool is_left) {
  const std::string at = y_at(y);
  drawn_ += fmt::format(
      "<line class=\"s{0}\" x1=\"0%\" x2=\"100%\" y1=\"{1}\" y2=\"{1}\" stroke-width=\"1.5\"/>\n"
      "<text class=\"halo\" x=\"{2}%\" y=\"{1}\" dx=\"{3}\" dy=\"-5\" text-anchor=\"{4}\">{5}"
      "</text>\n",
      color, at, is_left ? 0 : 100, is_left ? 4 : -4, is_left ? "start" : "end", escaped(words));
}

void Panel::words(PlotPoint at, std::string_view words, bool is_above) {
  drawn_ += fmt::format(
      "<text class=\"halo\" x=\"{}\" y=\"{}\" dx=\"{}\" dy=\"{}\" text-anchor=\"{}\">{}"
      "</text>\n",
      x_at(at.x), y_at(at.y), is_above ? 0 : 5, is_above ? -8 : 4, is_above ? "middle" : "start",
      escaped(words));
}

void Panel::legend(std::string_view name, int color) {
  legend_ +=
      fmt::format("<span><i style=\"background:var(--c{})\"></i>{}</span>", color, escaped(name));
}

std::string Panel::html() const {
  std::string grid;
  for (const PanelTick& tick : y_.ticks) {
    if (!y_.has_lines) break;
    grid += fmt::format("<line class=\"grid\" x1=\"0%\" x2=\"100%\" y1=\"{0}\" y2=\"{0}\"/>",
                        y_at(tick.value));
  }
  std::string below;
  for (size_t i = 0; i < x_.ticks.size(); ++i) {
    const PanelTick& tick = x_.ticks[i];
    grid += fmt::format("<line class=\"grid\" y1=\"0%\" y2=\"100%\" x1=\"{0}\" x2=\"{0}\"/>",
                        x_at(tick.value));
    below += fmt::format("<span{} style=\"left:{}\">{}</span>", when_narrow(i, x_.ticks.size()),
                         x_at(tick.value), escaped(tick.label));
  }
  const std::string stretched =
      stretched_.empty()
          ? ""
          : fmt::format(
                "<svg viewBox=\"0 0 {0:.0f} {0:.0f}\" preserveAspectRatio=\"none\" width=\"100%\" "
                "height=\"100%\">\n{1}</svg>\n",
                kUnits, stretched_);
  return fmt::format(
      "<figure class=\"panel\" style=\"--left:{:.2f}em;--right:{:.2f}em\">"
      "<div class=\"name\"><span>{}</span><span>{}</span></div>\n"
      "<div class=\"plot\"><div class=\"y\">{}</div><div class=\"drawn\">"
      "<svg xmlns=\"http://www.w3.org/2000/svg\" height=\"{:.0f}\" font-size=\"11\" "
      "fill=\"currentColor\">\n{}{}{}</svg></div><div class=\"y\">{}</div>"
      "<div class=\"x\">{}</div></div>\n<div class=\"name\"><span></span><span>{}</span></div>"
      "<div class=\"key\">{}</div></figure>\n",
      label_width(y_, left_characters_), label_width(right_), escaped(y_.name),
      escaped(right_.name), labels(y_), height_, grid, stretched, drawn_, labels(right_), below,
      escaped(x_.name), legend_);
}

std::string_view panel_style() {
  return kPanelStyle;
}

}  // namespace tokamak::svg
