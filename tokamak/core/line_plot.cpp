#include "tokamak/core/line_plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "tokamak/core/svg.h"

namespace tokamak::svg {
namespace {

constexpr double kPictureWidth = 420.0;
constexpr double kTop = 8.0;
constexpr double kAxis = 24.0;  // room below for the steps
constexpr Frame kPlot{.left = 44.0, .width = 366.0, .height = 176.0};
constexpr int kTicks = 5;

struct Scale {
  double low = 0.0;
  double high = 1.0;
  bool is_log = false;

  double share(double value) const {
    if (is_log) return std::log(value / low) / std::log(high / low);
    return (value - low) / (high - low);
  }

  std::vector<double> ticks() const {
    if (!is_log) return round_ticks(low, high, kTicks);
    std::vector<double> all;
    const double decades = std::log10(high / low);
    const int every = std::max(1, static_cast<int>(std::ceil(decades / 5.0)));
    for (int e = static_cast<int>(std::floor(std::log10(low))); std::pow(10.0, e) <= high;
         e += every) {
      for (const double digit : {1.0, 2.0, 5.0}) {
        const double value = digit * std::pow(10.0, e);
        if (value >= low && value <= high && (digit == 1.0 || decades < 2.0)) all.push_back(value);
      }
    }
    return all;
  }
};

double x_at(const Scale& x, double value) {
  return kPlot.left + kPlot.width * x.share(value);
}

double y_at(const Scale& y, double value) {
  return kTop + kPlot.height * (1.0 - y.share(value));
}

std::vector<double> finite_values(const LinePlot& plot) {
  std::vector<double> all;
  for (const PlotCurve& curve : plot.curves) {
    for (const PlotPoint& p : curve.points) {
      if (std::isfinite(p.y)) all.push_back(p.y);
    }
  }
  return all;
}

Scale scale_of(std::vector<double> values, const LinePlot& plot) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  const double median = *middle;
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  Scale scale{.low = *low, .high = *high};
  if (scale.low > 0.0 && scale.high > plot.log_above * median) {
    scale.is_log = true;
    scale.low /= 1.2;
    scale.high *= 1.2;
    return scale;
  }
  if (plot.starts_at_zero) scale.low = std::min(scale.low, 0.0);
  double room = 0.05 * (scale.high - scale.low);
  if (!(room > 0.0)) room = std::max(0.05 * std::abs(scale.high), 1e-6);
  if (!plot.starts_at_zero) scale.low -= room;
  scale.high += room;
  return scale;
}

Scale steps_of(const LinePlot& plot) {
  Scale x{.low = std::numeric_limits<double>::max(), .high = 0.0};
  for (const PlotCurve& curve : plot.curves) {
    for (const PlotPoint& p : curve.points) {
      x.low = std::min(x.low, p.x);
      x.high = std::max(x.high, p.x);
    }
  }
  if (x.low >= x.high) x = {.low = x.low - 1.0, .high = x.low + 1.0};
  return x;
}

std::string axes(const Scale& x, const Scale& y, std::string_view x_name) {
  std::string drawn;
  for (const double value : y.ticks()) {
    const double at = y_at(y, value);
    drawn += rect(kPlot.left, at, kPlot.width, 0.5, "#8888") +
             text(kPlot.left - 5.0, at + 4.0, short_number(value), "end");
  }
  const double bottom = kTop + kPlot.height;
  drawn += text(0.0, bottom + 15.0, x_name);
  for (const double value : x.ticks()) {
    const double at = x_at(x, value);
    drawn += rect(at, bottom, 0.5, 3.0, "#8888") +
             text(std::clamp(at, kPlot.left + 8.0, kPlot.left + kPlot.width - 8.0), bottom + 15.0,
                  short_number(value), "middle");
  }
  return drawn;
}

std::string path_of(const PlotCurve& curve, const Scale& x, const Scale& y, size_t most) {
  std::string path;
  bool is_broken = true;
  std::string dots;  // points without a neighbour, which a line does not show
  const auto points = thinned(curve.points, most);
  for (size_t i = 0; i < points.size(); ++i) {
    const PlotPoint& p = points[i];
    if (!std::isfinite(p.y)) {
      is_broken = true;
      continue;
    }
    const double px = x_at(x, p.x);
    const double py = y_at(y, p.y);
    const bool is_last = i + 1 == points.size() || !std::isfinite(points[i + 1].y);
    if (is_broken && is_last) dots += fmt::format("M{:.1f} {:.1f}h.1", px, py);
    path += fmt::format("{}{:.1f} {:.1f}", is_broken ? 'M' : 'L', px, py);
    is_broken = false;
  }
  std::string drawn = fmt::format(
      "<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.3\" stroke-linejoin=\"round\"{}>"
      "<title>{}</title></path>\n",
      path, curve.color, curve.is_dashed ? " stroke-dasharray=\"4 3\"" : "", escaped(curve.name));
  if (!dots.empty())
    drawn += fmt::format(
        "<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"4\" "
        "stroke-linecap=\"round\"/>\n",
        dots, curve.color);
  return drawn;
}

std::string mark_of(const PlotMark& mark, const Scale& x) {
  const double at = x_at(x, std::clamp(mark.x, x.low, x.high));
  const double bottom = kTop + kPlot.height;
  return fmt::format("<path d=\"M{:.1f} {:.1f}l3.5 6h-7z\" fill=\"{}\"><title>{}</title></path>\n",
                     at, bottom - 6.0, mark.color, escaped(mark.title));
}

std::string picture(const std::string& drawn) {
  return begin(kPictureWidth, kTop + kPlot.height + kAxis) + drawn + "</svg>\n";
}

}  // namespace

std::vector<PlotPoint> thinned(const std::vector<PlotPoint>& points, size_t most) {
  if (points.size() <= most || most < 4) return points;
  std::vector<PlotPoint> kept;
  const size_t num_parts = most / 2;
  for (size_t part = 0; part < num_parts; ++part) {
    const size_t begin = points.size() * part / num_parts;
    const size_t end = points.size() * (part + 1) / num_parts;
    size_t low = begin;
    size_t high = begin;
    size_t gap = end;
    for (size_t i = begin; i < end; ++i) {
      if (!std::isfinite(points[i].y)) {
        gap = i;
        continue;
      }
      if (!std::isfinite(points[low].y) || points[i].y < points[low].y) low = i;
      if (!std::isfinite(points[high].y) || points[i].y > points[high].y) high = i;
    }
    std::array<size_t, 3> chosen{low, high, gap};
    std::sort(chosen.begin(), chosen.end());
    for (size_t i = 0; i < chosen.size(); ++i) {
      if (chosen[i] < end && (i == 0 || chosen[i] != chosen[i - 1]))
        kept.push_back(points[chosen[i]]);
    }
  }
  return kept;
}

std::string draw(const LinePlot& plot) {
  const std::vector<double> values = finite_values(plot);
  if (values.empty()) return "";
  const Scale x = steps_of(plot);
  const Scale y = scale_of(values, plot);
  std::string drawn = axes(x, y, "step");
  for (const PlotCurve& curve : plot.curves) drawn += path_of(curve, x, y, plot.most_points);
  for (const PlotMark& mark : plot.marks) drawn += mark_of(mark, x);
  return picture(drawn);
}

std::string draw(const Histogram& histogram) {
  constexpr size_t kBins = 40;
  std::vector<double> values;
  for (const auto& part : histogram.parts) {
    for (const PlotPoint& p : part.weighted) {
      if (std::isfinite(p.x)) values.push_back(p.x);
    }
  }
  if (values.empty()) return "";
  std::sort(values.begin(), values.end());
  Scale x{.low = values.front(), .high = values[(values.size() - 1) * 199 / 200]};
  if (x.low >= x.high) x = {.low = 0.9 * x.low, .high = 1.1 * x.low + 1e-9};
  std::vector<std::array<double, kBins>> shares;
  double most = 0.0;
  for (const auto& part : histogram.parts) {
    auto& bins = shares.emplace_back();
    double sum = 0.0;
    for (const PlotPoint& p : part.weighted) {
      if (!std::isfinite(p.x)) continue;
      const double at = std::clamp(x.share(p.x), 0.0, 1.0) * kBins;
      bins[std::min(static_cast<size_t>(at), kBins - 1)] += p.y;
      sum += p.y;
    }
    for (double& bin : bins) {
      bin = sum > 0.0 ? 100.0 * bin / sum : 0.0;
      most = std::max(most, bin);
    }
  }
  const Scale y{.low = 0.0, .high = 1.05 * most};
  std::string drawn = axes(x, y, "s");
  for (size_t i = 0; i < shares.size(); ++i) {
    std::string path = fmt::format("M{:.1f} {:.1f}", kPlot.left, y_at(y, 0.0));
    for (size_t bin = 0; bin < kBins; ++bin) {
      const double right = kPlot.left + kPlot.width * static_cast<double>(bin + 1) / kBins;
      path += fmt::format("V{:.1f}H{:.1f}", y_at(y, shares[i][bin]), right);
    }
    const auto& part = histogram.parts[i];
    drawn += fmt::format(
        "<path d=\"{}V{:.1f}Z\" fill=\"{}\" fill-opacity=\"0.25\" stroke=\"{}\"><title>{}</title>"
        "</path>\n",
        path, y_at(y, 0.0), part.color, part.color, escaped(part.name));
  }
  return picture(drawn);
}

std::string short_number(double value) {
  const double size = std::abs(value);
  if (size >= 9.9995e8) return fmt::format("{:.3g}G", value / 1e9);
  if (size >= 9.9995e5) return fmt::format("{:.3g}M", value / 1e6);
  if (size >= 9999.5) return fmt::format("{:.3g}k", value / 1e3);
  return fmt::format("{:.4g}", value);
}

}  // namespace tokamak::svg
