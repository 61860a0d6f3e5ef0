#include <algorithm>

#include <fmt/format.h>

#include "tokamak/core/bytes.h"
#include "tokamak/core/panel.h"
#include "tokamak/core/svg.h"
#include "tokamak/run/mesh_options.h"
#include "tokamak/run/run_of_config.h"
#include "tokamak/search/search.h"

namespace tokamak {
namespace {

constexpr size_t kMostDots = 3'000;
constexpr double kHeight = 380.0;
constexpr int kPriced = 0;

struct TimeAndMemory {
  double seconds = 0.0;
  double gib = 0.0;
};

std::vector<TimeAndMemory> priced_points(const SearchResult& result) {
  std::vector<TimeAndMemory> points;
  for (const FoundPlan& f : result.best)
    points.push_back({f.step.seconds, static_cast<double>(f.peak_bytes) / kGiB});
  return points;
}

// Returns the points that no other beats in both time and memory, by memory.
std::vector<TimeAndMemory> frontier(std::vector<TimeAndMemory> points) {
  std::sort(points.begin(), points.end(), [](const auto& a, const auto& b) {
    return std::pair(a.gib, a.seconds) < std::pair(b.gib, b.seconds);
  });
  std::vector<TimeAndMemory> best;
  for (const TimeAndMemory& p : points) {
    if (best.empty() || p.seconds < best.back().seconds) best.push_back(p);
  }
  return best;
}

// Draws the frontier as the stairs that separate what some priced plan reaches from what none does.
void draw_frontier(svg::Panel& panel, const std::vector<TimeAndMemory>& best, double highest_s,
                   double most_gib) {
  std::vector<svg::PlotPoint> line = {{.x = best.front().gib, .y = highest_s}};
  for (size_t i = 0; i < best.size(); ++i) {
    line.push_back({.x = best[i].gib, .y = best[i].seconds});
    line.push_back({.x = i + 1 < best.size() ? best[i + 1].gib : most_gib, .y = best[i].seconds});
  }
  panel.curve(line, kPriced);
}

std::string figure(const SearchResult& result) {
  const std::vector<TimeAndMemory> priced = priced_points(result);
  const double limit_gib = result.memory_limit_bytes / kGiB;
  // Estimates that are far slower than what was found would press all else together.
  const double slowest = priced.back().seconds;
  const double shown = std::max(1.6 * priced.front().seconds, 1.1 * slowest);
  const double low = 0.94 * priced.front().seconds;
  const double most_gib = 1.06 * limit_gib;
  svg::Panel panel(svg::linear_axis("GiB of the fullest device", 0.0, most_gib, 8),
                   svg::linear_axis("s of a step", low, shown), kHeight);
  const size_t stride = result.estimated.size() / kMostDots + 1;
  for (size_t i = 0; i < result.estimated.size(); i += stride) {
    const EstimatedPlan& e = result.estimated[i];
    if (e.seconds < low || e.seconds > shown || e.least_bytes > most_gib * kGiB) continue;
    panel.dot({.x = e.least_bytes / kGiB, .y = e.seconds}, svg::kGrey, "", 2.0);
  }
  draw_frontier(panel, frontier(priced), shown, most_gib);
  const svg::PlotPoint limit[] = {{.x = limit_gib, .y = low}, {.x = limit_gib, .y = shown}};
  panel.curve(limit, svg::kRed, true);
  for (size_t i = 0; i < priced.size(); ++i) {
    const FoundPlan& f = result.best[i];
    panel.dot({.x = priced[i].gib, .y = priced[i].seconds}, kPriced,
              fmt::format("{}: {:.3f} s, {:.1f} GiB, {}", i + 1, priced[i].seconds, priced[i].gib,
                          mesh_text(f.point.degrees)),
              5.0);
    panel.words({.x = priced[i].gib, .y = priced[i].seconds}, std::to_string(i + 1), true);
  }
  panel.legend("priced plans, numbered as in the table, and their frontier", kPriced);
  panel.legend("estimated plans, with the least memory that they need", svg::kGrey);
  panel.legend("limit of a device (dashed)", svg::kRed);
  return panel.html();
}

}  // namespace

std::string search_page(const SearchRequest& request, const SearchResult& result) {
  const ModelSpec model = spec_of(request.config);
  return svg::page(fmt::format("{} {} on {} x {}: time and memory", model.name, model.flavor,
                               request.num_gpus, request.machine.name),
                   fmt::format("{}\n<pre>{}</pre>\n", figure(result),
                               svg::escaped(search_text(request, result))),
                   svg::panel_style());
}

}  // namespace tokamak
