#include "tokamak/core/page.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include <fmt/format.h>

#include "tokamak/core/embedded.h"
#include "tokamak/core/error.h"

namespace tokamak {

std::span<const EmbeddedFile> page_files();
std::span<const EmbeddedFile> chart_files();

namespace {

// Bytes that are not UTF-8 become U+FFFD, and no tag can begin in a script.
std::string script_text(const OrderedJson& data) {
  std::string text = data.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  for (size_t at = text.find('<'); at != std::string::npos; at = text.find('<', at))
    text.replace(at, 1, "\\u003c");
  return text;
}

}  // namespace

OrderedJson rounded(double value) {
  if (!std::isfinite(value)) return nullptr;
  return std::strtod(fmt::format("{:.5g}", value).c_str(), nullptr);
}

OrderedJson points_json(const std::vector<PlotPoint>& points) {
  OrderedJson all = OrderedJson::array();
  for (const PlotPoint& p : points) all.push_back({rounded(p.x), rounded(p.y)});
  return all;
}

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
    std::ranges::sort(chosen);
    for (size_t i = 0; i < chosen.size(); ++i) {
      if (chosen[i] < end && (i == 0 || chosen[i] != chosen[i - 1]))
        kept.push_back(points[chosen[i]]);
    }
  }
  return kept;
}

std::string short_number(double value) {
  const double size = std::abs(value);
  if (size >= 9.9995e8) return fmt::format("{:.3g}G", value / 1e9);
  if (size >= 9.9995e5) return fmt::format("{:.3g}M", value / 1e6);
  if (size >= 9999.5) return fmt::format("{:.3g}k", value / 1e3);
  return fmt::format("{:.4g}", value);
}

std::string page_data(std::string_view title, const OrderedJson& blocks) {
  return OrderedJson{{"title", title}, {"blocks", blocks}}.dump(
      -1, ' ', false, OrderedJson::error_handler_t::replace);
}

std::string html_page(std::string_view title, const OrderedJson& blocks, bool is_live) {
  const OrderedJson data{{"title", title}, {"blocks", blocks}, {"live", is_live}};
  const std::string script = fmt::format("<script>{}</script>", chart_files().front().text);
  const std::array<std::pair<std::string_view, std::string>, 2> parts = {
      {{"{{chart.js}}", script}, {"{{data}}", script_text(data)}}};
  std::string_view rest = page_files().front().text;
  std::string page;
  for (const auto& [name, text] : parts) {
    const size_t at = rest.find(name);
    TOK_CHECK(at != std::string_view::npos, "page.html has no {}", name);
    page.append(rest.substr(0, at)).append(text);
    rest.remove_prefix(at + name.size());
  }
  return page.append(rest);
}

}  // namespace tokamak
