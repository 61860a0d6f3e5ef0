#include "tokamak/price/report/pictures.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "tokamak/core/bytes.h"
#include "tokamak/core/enum_array.h"
#include "tokamak/core/panel.h"
#include "tokamak/core/svg.h"

namespace tokamak::price {
namespace {

using svg::Panel;
using svg::PlotPoint;

constexpr size_t kMostRows = 24;
constexpr double kRow = 30.0;           // pixels of a rank
constexpr double kPlot = 240.0;         // of the height of curves
constexpr double kFewBlocks = 2'000.0;  // that have titles
constexpr double kMostBlocks = 24'000.0;
constexpr size_t kRankCharacters = 10;  // "rank 12345", beside which memory is drawn over time
constexpr EnumArray<BlockKind, std::string_view, kNumBlockKinds> kBlockNames = {
    "forward", "backward", "weight gradients", "once a step", "communication"};
constexpr EnumArray<BlockKind, int, kNumBlockKinds> kBlockColors = {0, 1, 2, 4, 3};
constexpr EnumArray<Category, int, kNumCategories> kCategoryColors = {0, 1, 2, 3, 4, 7, 5};
constexpr EnumArray<ArenaKind, int, kNumDeviceArenas> kArenaColors = {0, 5, 1, 2};

// Names of arenas' contents, for people.
constexpr EnumArray<ArenaKind, std::string_view, kNumDeviceArenas> kArenaNames = {
    "weights, gradients, moments", "compute weights", "saved activations of the pipeline",
    "activations and temporaries of a microbatch"};

svg::PanelAxis time_axis(double step_s) {
  return step_s < 2.0 ? svg::linear_axis("ms of the step", 0.0, 1e3 * step_s, 8)
                      : svg::linear_axis("s of the step", 0.0, step_s, 8);
}

double time_unit(double step_s) {
  return step_s < 2.0 ? 1e3 : 1.0;
}

BlockKind kind_of(const Task& task) {
  switch (task.label.phase) {
    case Phase::kForward:
      return BlockKind::kForward;
    case Phase::kBackward:
      return BlockKind::kBackward;
    case Phase::kWeightGradient:
      return BlockKind::kWeightGradient;
    default:
      return BlockKind::kOnce;
  }
}

void add_block(std::vector<Block>& lane, const Block& block, double thinnest_s) {
  if (!lane.empty()) {
    Block& last = lane.back();
    const bool touches = block.begin_s <= last.end_s + thinnest_s;
    const bool is_same = last.kind == block.kind && last.microbatch == block.microbatch;
    const bool is_thin = last.end_s - last.begin_s < thinnest_s;
    if (touches && (is_same || is_thin)) {
      last.end_s = std::max(last.end_s, block.end_s);
      return;
    }
  }
  lane.push_back(block);
}

// Draws a lane between two heights, with titles where there are few blocks in all.
void draw_lane(Panel& panel, const std::vector<Block>& lane, double y0, double y1, double unit,
               bool has_titles) {
  EnumArray<BlockKind, std::vector<std::array<double, 4>>, kNumBlockKinds> sides;
  for (const Block& b : lane) {
    if (has_titles) {
      panel.bar(unit * b.begin_s, unit * b.end_s, y0, y1, kBlockColors[b.kind],
                fmt::format("{} of microbatch {}: {:.3f} to {:.3f} ms", kBlockNames[b.kind],
                            b.microbatch, 1e3 * b.begin_s, 1e3 * b.end_s));
    } else {
      sides[b.kind].push_back({unit * b.begin_s, unit * b.end_s, y0, y1});
    }
  }
  for (size_t k = 0; k < kNumBlockKinds; ++k) panel.bars(sides[k], kBlockColors[k]);
}

// Returns the number that a text is, or nothing.
std::optional<double> number_of(const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  return !text.empty() && *end == '\0' && number > 0.0 ? std::optional(number) : std::nullopt;
}

std::vector<double> numbers_of(const std::vector<std::string>& values) {
  std::vector<double> numbers;
  for (const std::string& value : values) {
    if (const auto number = number_of(value)) numbers.push_back(*number);
  }
  return numbers;
}

double most_of(const SweepPicture& sweep) {
  double most = 0.0;
  for (const SweepCurve& curve : sweep.curves) {
    for (const SweepPoint& p : curve.points) most = std::max(most, p.device_tokens_per_s);
  }
  for (const PublishedPoint& p : sweep.published) most = std::max(most, p.device_tokens_per_s);
  return most;
}

// Returns the first rate of a curve, or 0.
double first_rate(const SweepCurve& curve) {
  const auto first = std::find_if(curve.points.begin(), curve.points.end(),
                                  [](const SweepPoint& p) { return p.reason.empty(); });
  return first == curve.points.end() ? 0.0 : first->device_tokens_per_s;
}

// Returns an axis over the values, which are labelled where labels have room.
svg::PanelAxis value_axis(const std::string& key, const std::vector<double>& numbers,
                          const std::vector<PublishedPoint>& published) {
  constexpr double kRoom = 0.045;  // of the axis
  std::vector<double> all = numbers;
  for (const PublishedPoint& p : published) all.push_back(p.value);
  const auto [low, high] = std::minmax_element(all.begin(), all.end());
  svg::PanelAxis axis{.name = key, .low = *low, .high = *high, .is_log = *high > 4.0 * *low};
  const double edge = axis.is_log ? std::pow(*high / *low, 0.04) : 0.04 * (*high - *low);
  if (axis.is_log) {
    axis.low /= edge;
    axis.high *= edge;
  } else {
    axis.low -= edge > 0.0 ? edge : 0.5 * *low;
    axis.high += edge > 0.0 ? edge : 0.5 * *low;
  }
  std::vector<double> sorted = numbers;
  std::sort(sorted.begin(), sorted.end());
  for (const double value : sorted) {
    if (axis.ticks.empty() || axis.share(value) - axis.share(axis.ticks.back().value) > kRoom)
      axis.ticks.push_back({.value = value, .label = fmt::format("{:.6g}", value)});
  }
  return axis;
}

std::string curves_figure(const SweepPicture& sweep, const std::vector<double>& numbers) {
  const double top = 1.1 * most_of(sweep);
  const bool is_of_gpus = sweep.key == "gpus";
  const bool is_alone = sweep.curves.size() == 1;
  Panel panel(value_axis(sweep.key, numbers, sweep.published),
              svg::linear_axis("tokens/s/GPU", 0.0, top), kPlot);
  for (size_t c = 0; c < sweep.curves.size(); ++c) {
    const SweepCurve& curve = sweep.curves[c];
    const int color = static_cast<int>(c) % svg::kGrey;
    const double first = first_rate(curve);
    std::vector<PlotPoint> line;
    for (size_t i = 0; i < numbers.size(); ++i) {
      const SweepPoint& p = curve.points[i];
      line.push_back({.x = numbers[i], .y = p.reason.empty() ? p.device_tokens_per_s : NAN});
    }
    std::sort(line.begin(), line.end(), [](const auto& a, const auto& b) { return a.x < b.x; });
    if (is_of_gpus && first > 0.0) {
      const PlotPoint ideal[] = {{.x = line.front().x, .y = first},
                                 {.x = line.back().x, .y = first}};
      panel.curve(ideal, is_alone ? svg::kGrey : color, true);
    }
    panel.curve(line, color);
    for (size_t i = 0; i < numbers.size(); ++i) {
      const SweepPoint& p = curve.points[i];
      if (!p.reason.empty()) {
        panel.cross({.x = numbers[i], .y = 0.02 * top * static_cast<double>(1 + 3 * c)},
                    is_alone ? svg::kRed : color, p.reason);
        continue;
      }
      const PlotPoint at{.x = numbers[i], .y = p.device_tokens_per_s};
      panel.dot(at, color,
                fmt::format("{}{} {}: {:.1f} tokens/s/GPU, {:.1f} % of the first",
                            curve.name.empty() ? "" : curve.name + ", ", sweep.key, sweep.values[i],
                            p.device_tokens_per_s, 100.0 * p.device_tokens_per_s / first));
    }
    if (!is_alone) panel.legend(curve.name, color);
  }
  for (const PublishedPoint& p : sweep.published)
    panel.dot({.x = p.value, .y = p.device_tokens_per_s}, svg::kRed, p.title, 6.0, true);
  if (is_alone) {
    const double first = first_rate(sweep.curves[0]);
    svg::PanelAxis kept = svg::linear_axis("% of the first value's rate", 0.0, 100.0 * top / first);
    panel.set_right(std::move(kept));
    panel.legend("priced", 0);
    if (is_of_gpus) panel.legend("ideal: the first value's rate (dashed)", svg::kGrey);
  } else if (is_of_gpus) {
    panel.legend("ideal: each curve's first rate (dashed)", svg::kGrey);
  }
  if (!sweep.published.empty()) panel.legend("published", svg::kRed);
  return panel.html();
}

// Values that are no numbers are rows, so that their names have room.
std::string rows_figure(const SweepPicture& sweep) {
  const double most = most_of(sweep);
  const size_t num_values = sweep.values.size();
  const std::vector<std::string> names(sweep.values.rbegin(), sweep.values.rend());
  const double height = 1.0 / static_cast<double>(sweep.curves.size());
  Panel panel(
      svg::linear_axis("tokens/s/GPU", 0.0, 1.3 * most), svg::name_axis(sweep.key, names),
      (12.0 + 14.0 * static_cast<double>(sweep.curves.size())) * static_cast<double>(num_values));
  for (size_t c = 0; c < sweep.curves.size(); ++c) {
    const SweepCurve& curve = sweep.curves[c];
    const int color = static_cast<int>(c) % svg::kGrey;
    for (size_t i = 0; i < num_values; ++i) {
      const SweepPoint& p = curve.points[i];
      const double upper =
          static_cast<double>(num_values - 1 - i) + 0.4 - 0.8 * height * static_cast<double>(c);
      const double middle = upper - 0.4 * height;
      if (!p.reason.empty()) {
        panel.cross({.x = 0.02 * most, .y = middle}, svg::kRed, p.reason);
        continue;
      }
      const std::string rate = fmt::format("{:.1f}", p.device_tokens_per_s);
      panel.bar(0.0, p.device_tokens_per_s, upper - 0.74 * height, upper, color, rate);
      panel.words({.x = p.device_tokens_per_s, .y = middle}, rate);
    }
    if (sweep.curves.size() > 1) panel.legend(curve.name, color);
  }
  return panel.html();
}

}  // namespace

std::vector<TimelineRow> timeline_rows(std::span<const PricedSpan> spans,
                                       std::span<const int> ranks, double step_s) {
  const size_t num_rows = std::min(ranks.size(), kMostRows);
  constexpr size_t kNone = SIZE_MAX;
  std::vector<size_t> row_of(ranks.size(), kNone);
  std::vector<TimelineRow> rows;
  for (size_t i = 0; i < num_rows; ++i) {
    const size_t at = num_rows == 1 ? 0 : i * (ranks.size() - 1) / (num_rows - 1);
    row_of[at] = i;
    rows.push_back({.name = fmt::format("rank {}", ranks[at])});
  }
  // A lane has at most about one block for each of these and for each gap between two.
  const double thinnest_s =
      step_s * std::max(2e-4, 4.0 * static_cast<double>(num_rows) / kMostBlocks);
  for (const PricedSpan& s : spans) {
    if (row_of[s.rank] == kNone) continue;
    TimelineRow& row = rows[row_of[s.rank]];
    Block block{.kind = kind_of(*s.task),
                .microbatch = s.microbatch,
                .begin_s = s.begin_s,
                .end_s = s.end_s};
    if (s.stream != 0) block.kind = BlockKind::kCommunication;
    add_block(s.stream == 0 ? row.compute : row.communication, block, thinnest_s);
  }
  return rows;
}

std::string timeline_figure(std::span<const TimelineRow> rows, double step_s) {
  std::vector<std::string> names;
  double num_blocks = 0.0;
  for (const TimelineRow& row : rows) {
    names.insert(names.begin(), row.name);
    num_blocks += static_cast<double>(row.compute.size() + row.communication.size());
  }
  Panel panel(time_axis(step_s), svg::name_axis("", names),
              kRow * static_cast<double>(rows.size()));
  panel.set_left_characters(kRankCharacters);
  const bool has_titles = num_blocks <= kFewBlocks;
  for (size_t r = 0; r < rows.size(); ++r) {
    const auto y = static_cast<double>(rows.size() - 1 - r);
    draw_lane(panel, rows[r].compute, y - 0.16, y + 0.4, time_unit(step_s), has_titles);
    draw_lane(panel, rows[r].communication, y - 0.38, y - 0.18, time_unit(step_s), has_titles);
  }
  for (size_t k = 0; k < kNumBlockKinds; ++k) panel.legend(kBlockNames[k], kBlockColors[k]);
  return panel.html();
}

std::string memory_figure(std::span<const MemoryPoint> points, double step_s, double planned_bytes,
                          double limit_bytes) {
  double most = std::max(planned_bytes, limit_bytes);
  std::vector<std::vector<PlotPoint>> sums(kNumDeviceArenas + 1);
  for (const MemoryPoint& p : points) {
    double sum = 0.0;
    for (size_t a = 0; a <= kNumDeviceArenas; ++a) {
      sums[a].push_back({.x = time_unit(step_s) * p.time_s, .y = sum / kGiB});
      if (a < kNumDeviceArenas) sum += p.bytes[a];
    }
    most = std::max(most, sum);
  }
  Panel panel(time_axis(step_s), svg::linear_axis("GiB", 0.0, 1.08 * most / kGiB), kPlot);
  panel.set_left_characters(kRankCharacters);
  for (size_t a = 0; a < kNumDeviceArenas; ++a) {
    panel.area(sums[a], sums[a + 1], kArenaColors[a]);
    panel.legend(kArenaNames[a], kArenaColors[a]);
  }
  // The two may be close, so their words stand at different ends.
  panel.level(limit_bytes / kGiB, svg::kRed, fmt::format("limit {:.1f}", limit_bytes / kGiB));
  panel.level(planned_bytes / kGiB, svg::kGrey, fmt::format("planned {:.1f}", planned_bytes / kGiB),
              true);
  return panel.html();
}

std::string breakdown_figure(const StepPrice& step) {
  std::vector<std::string> names;
  double most = 0.0;
  for (size_t c = kNumCategories; c-- > 0;) {
    names.emplace_back(name_of(static_cast<Category>(c)));
    most = std::max(most, step.by_category[c] / step.seconds);
  }
  Panel panel(svg::linear_axis("% of the step", 0.0, 125.0 * most), svg::name_axis("", names),
              24.0 * static_cast<double>(kNumCategories));
  for (size_t c = 0; c < kNumCategories; ++c) {
    const double share = 100.0 * step.by_category[c] / step.seconds;
    const auto y = static_cast<double>(kNumCategories - 1 - c);
    panel.bar(
        0.0, share, y - 0.36, y + 0.36, kCategoryColors[c],
        fmt::format("{}: {:.3f} ms", name_of(static_cast<Category>(c)), 1e3 * step.by_category[c]));
    panel.words({.x = share, .y = y}, fmt::format("{:.1f} %", share));
  }
  return panel.html();
}

std::string sweep_figure(const SweepPicture& sweep) {
  const std::vector<double> numbers = numbers_of(sweep.values);
  return numbers.size() == sweep.values.size() ? curves_figure(sweep, numbers) : rows_figure(sweep);
}

std::string step_page(const Report& report, std::span<const TimelineRow> rows,
                      const MemoryInStep& memory) {
  const double step_s = report.step.seconds;
  std::string body = fmt::format("<pre>{}</pre>\n<h2>Where the time goes</h2>\n{}",
                                 svg::escaped(to_text(report)), breakdown_figure(report.step));
  body += fmt::format("<h2>The step</h2>\n{}", timeline_figure(rows, step_s));
  body += fmt::format(
      "<h2>Memory of rank {}</h2>\n{}", memory.rank,
      memory_figure(memory.points, step_s, memory.planned_bytes, report.memory_limit_bytes));
  return svg::page(fmt::format("{} on {} x {}", report.model, report.num_devices, report.machine),
                   body, svg::panel_style());
}

std::string sweep_page(const std::string& title, const std::string& table,
                       const std::string& figure) {
  return svg::page(title, fmt::format("<pre>{}</pre>\n{}", svg::escaped(table), figure),
                   svg::panel_style());
}

}  // namespace tokamak::price
