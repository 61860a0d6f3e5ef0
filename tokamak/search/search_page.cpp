#include <algorithm>

#include <fmt/format.h>

#include "tokamak/core/bytes.h"
#include "tokamak/core/page.h"
#include "tokamak/run/mesh_options.h"
#include "tokamak/run/run_of_config.h"
#include "tokamak/search/search.h"

namespace tokamak {
namespace {

constexpr size_t kMostDots = 3'000;

// Returns the stairs that separate what some priced plan reaches from what none does.
std::vector<PlotPoint> frontier(const SearchResult& result, double highest_s, double most_gib) {
  std::vector<PlotPoint> plans;
  for (const FoundPlan& f : result.best)
    plans.push_back({.x = static_cast<double>(f.peak_bytes) / kGiB, .y = f.step.seconds});
  std::sort(plans.begin(), plans.end(),
            [](const auto& a, const auto& b) { return std::pair(a.x, a.y) < std::pair(b.x, b.y); });
  std::vector<PlotPoint> line = {{.x = plans[0].x, .y = highest_s}};
  for (const PlotPoint& p : plans) {
    if (p.y >= line.back().y) continue;
    line.push_back({.x = p.x, .y = line.back().y});
    line.push_back(p);
  }
  line.push_back({.x = most_gib, .y = line.back().y});
  return line;
}

OrderedJson chart(const SearchResult& result) {
  const double limit_gib = result.memory_limit_bytes / kGiB;
  const double fastest = result.best.front().step.seconds;
  // Estimates that are far slower than what was found would press all else together.
  const double shown = std::max(1.6 * fastest, 1.1 * result.best.back().step.seconds);
  const double low = 0.94 * fastest;
  const double most_gib = 1.06 * limit_gib;
  OrderedJson estimates = OrderedJson::array();
  const size_t stride = result.estimated.size() / kMostDots + 1;
  for (size_t i = 0; i < result.estimated.size(); i += stride) {
    const PointEstimate& e = result.estimated[i];
    if (e.seconds < low || e.seconds > shown || e.bytes > most_gib * kGiB) continue;
    estimates.push_back({rounded(e.bytes / kGiB), rounded(e.seconds)});
  }
  OrderedJson plans = OrderedJson::array();
  OrderedJson numbers = OrderedJson::array();
  for (size_t i = 0; i < result.best.size(); ++i) {
    const FoundPlan& f = result.best[i];
    const double gib = static_cast<double>(f.peak_bytes) / kGiB;
    plans.push_back({rounded(gib), rounded(f.step.seconds),
                     fmt::format("{}: {:.3f} s, {:.1f} GiB, {}", i + 1, f.step.seconds, gib,
                                 mesh_text(f.point.degrees))});
    numbers.push_back({rounded(gib), rounded(f.step.seconds), std::to_string(i + 1)});
  }
  return {{"height", 420},
          {"legend", true},
          {"bars", true},
          {"x", {{"name", "GiB of the fullest device"}, {"min", 0}, {"max", rounded(most_gib)}}},
          {"y", {{"name", "s of a step"}, {"min", rounded(low)}, {"max", rounded(shown)}}},
          {"series",
           {{{"name", "estimated plans, with the least memory that they need"},
             {"kind", "dots"},
             {"color", kGrey},
             {"radius", 1.5},
             {"points", estimates}},
            {{"name", "frontier of the priced plans"},
             {"kind", "line"},
             {"points", points_json(frontier(result, shown, most_gib))}},
            {{"name", "limit of a device (dashed)"},
             {"kind", "line"},
             {"color", kRed},
             {"dashed", true},
             {"points", points_json({{.x = limit_gib, .y = low}, {.x = limit_gib, .y = shown}})}},
            {{"kind", "dots"}, {"words", true}, {"radius", 0}, {"points", numbers}},
            {{"name", "priced plans, numbered as in the table"},
             {"kind", "dots"},
             {"radius", 5},
             {"points", plans}}}}};
}

}  // namespace

std::string search_page(const SearchRequest& request, const SearchResult& result) {
  const ModelSpec model = spec_of(request.config);
  return html_page(fmt::format("{} {} on {} x {}: time and memory", model.name, model.flavor,
                               request.num_gpus, request.machine.name),
                   {{{"chart", chart(result)}}, {{"pre", search_text(request, result)}}});
}

}  // namespace tokamak
