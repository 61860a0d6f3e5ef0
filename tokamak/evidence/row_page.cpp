#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "tokamak/core/names.h"
#include "tokamak/core/panel.h"
#include "tokamak/core/svg.h"
#include "tokamak/evidence/row_price.h"

namespace tokamak {
namespace {

using svg::Panel;
using svg::PlotPoint;

constexpr size_t kMostDots = 2'000;  // of a figure
constexpr size_t kMostFamilies = 60;
constexpr double kNear = 0.1;        // of the band around equal times
constexpr double kMostError = 40.0;  // in percent; what is beyond lies on the edge
constexpr double kRow = 18.0;        // pixels of a family

using Rows = std::vector<const PricedRow*>;

std::string words_of(const PricedRow& p) {
  return fmt::format("line {}: {} on {} x {}, {}: {:.4g} s measured, {:.4g} s predicted, {:+.1f} %",
                     p.run.line, printable(p.run.model).substr(0, 40), p.run.num_gpus,
                     p.run.machine, printable(p.run.stated_precision).substr(0, 20),
                     p.run.step_time_s, p.step.seconds, 100.0 * p.error());
}

// Returns the colours of the rows' software, the most frequent first; the last is shared.
std::map<std::string, int> software_colors(const Rows& rows) {
  std::map<std::string, int> counts;
  for (const PricedRow* p : rows) ++counts[p->run.software];
  std::vector<std::pair<int, std::string>> order;
  order.reserve(counts.size());
  for (const auto& [name, count] : counts) order.emplace_back(-count, name);
  std::sort(order.begin(), order.end());
  std::map<std::string, int> colors;
  for (size_t i = 0; i < order.size(); ++i)
    colors[order[i].second] = std::min(static_cast<int>(i), svg::kNumPanelColors - 1);
  return colors;
}

void add_legend(Panel& panel, const std::map<std::string, int>& colors) {
  for (const auto& [name, color] : colors) panel.legend(name, color);
}

std::string times_figure(const Rows& rows, const std::map<std::string, int>& colors) {
  double low = rows[0]->step.seconds;
  double high = low;
  for (const PricedRow* p : rows) {
    low = std::min({low, p->step.seconds, p->run.step_time_s});
    high = std::max({high, p->step.seconds, p->run.step_time_s});
  }
  low /= 1.2;
  high *= 1.2;
  Panel panel(svg::log_axis("s measured", low, high), svg::log_axis("s predicted", low, high),
              420.0);
  const auto line = [&](double factor) {
    return std::array<PlotPoint, 2>{PlotPoint{.x = low, .y = low * factor},
                                    PlotPoint{.x = high, .y = high * factor}};
  };
  for (const double factor : {1.0 - kNear, 1.0 + kNear})
    panel.curve(line(factor), svg::kGrey, true);
  panel.curve(line(1.0), svg::kGrey);
  for (const PricedRow* p : rows)
    panel.dot({.x = p->run.step_time_s, .y = p->step.seconds}, colors.at(p->run.software),
              words_of(*p), 3.0);
  add_legend(panel, colors);
  panel.legend("equal, and 10 % off (dashed)", svg::kGrey);
  return panel.html();
}

std::string errors_figure(const Rows& rows, const std::map<std::string, int>& colors) {
  std::map<std::string, Rows> families;
  for (const PricedRow* p : rows) families[p->run.family].push_back(p);
  while (families.size() > kMostFamilies) families.erase(std::prev(families.end()));
  std::vector<std::string> names;
  for (const auto& [name, some] : families)
    names.insert(names.begin(), fmt::format("{} ({})", name, some.size()));
  Panel panel(svg::linear_axis("% that the prediction is slower", -kMostError, kMostError, 8),
              svg::name_axis("", names), kRow * static_cast<double>(names.size()));
  auto y = static_cast<double>(names.size()) - 1.0;
  const PlotPoint zero[] = {{.x = 0.0, .y = -0.5}, {.x = 0.0, .y = y + 0.5}};
  panel.curve(zero, svg::kGrey);
  for (const auto& [name, some] : families) {
    for (const PricedRow* p : some) {
      const double error = std::clamp(100.0 * p->error(), -kMostError, kMostError);
      panel.dot({.x = error, .y = y}, colors.at(p->run.software), words_of(*p), 3.0);
    }
    y -= 1.0;
  }
  return panel.html();
}

}  // namespace

std::string rows_page(const std::string& title, const std::vector<PricedRow>& rows) {
  Rows priced;
  for (const PricedRow& p : rows) {
    if (p.skipped.empty()) priced.push_back(&p);
  }
  const std::string table = fmt::format("<pre>{}</pre>\n", svg::escaped(to_table(rows)));
  if (priced.empty()) return svg::page(title, table, svg::panel_style());
  const size_t all = priced.size();
  const size_t stride = all / kMostDots + 1;
  for (size_t i = 0; i * stride < all; ++i) priced[i] = priced[i * stride];
  priced.resize((all + stride - 1) / stride);
  const auto colors = software_colors(priced);
  const std::string note =
      stride == 1 ? "" : fmt::format("<p>Every {}th of {} rows is drawn.</p>\n", stride, all);
  return svg::page(
      title,
      fmt::format("{}<h2>Predicted beside measured</h2>\n{}<h2>Errors by family</h2>\n"
                  "{}<h2>All rows</h2>\n{}",
                  note, times_figure(priced, colors), errors_figure(priced, colors), table),
      svg::panel_style());
}

}  // namespace tokamak
