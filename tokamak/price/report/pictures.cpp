#include "tokamak/price/report/pictures.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include <fmt/format.h>

#include "tokamak/core/bytes.h"
#include "tokamak/core/enum_array.h"
#include "tokamak/core/svg.h"

namespace tokamak::price {
namespace {

constexpr double kWidth = 1100.0;  // pixels of a step
constexpr double kLeft = 70.0;     // of names
constexpr double kRow = 30.0;      // of a rank
constexpr double kLane = 20.0;     // of it, what computes
constexpr double kThinnest = 0.25;
constexpr double kHeight = 220.0;  // of a plot
constexpr svg::Frame kFrame{.left = kLeft, .width = kWidth, .height = kHeight};
constexpr EnumArray<BlockKind, std::string_view, kNumBlockKinds> kBlockNames = {
    "forward", "backward", "weight gradients", "once a step", "communication"};
constexpr EnumArray<BlockKind, std::string_view, kNumBlockKinds> kBlockColors = {
    "#8ebef0", "#92d296", "#f4c878", "#c9a6dd", "#e07a6a"};
constexpr EnumArray<Category, std::string_view, kNumCategories> kCategoryColors = {
    "#4f86c6", "#7bb274", "#e0b04c", "#e07a6a", "#8c6bb1", "#d9d9d9", "#c9a6dd"};
constexpr EnumArray<ArenaKind, std::string_view, kNumDeviceArenas> kArenaColors = {
    "#4f86c6", "#8ebef0", "#92d296", "#f4c878"};

// Names of arenas' contents, for people.
constexpr EnumArray<ArenaKind, std::string_view, kNumDeviceArenas> kArenaNames = {
    "weights, gradients, moments", "compute weights", "saved activations of the pipeline",
    "activations and temporaries of a microbatch"};

std::string picture(double height) {
  return svg::begin(kLeft + kWidth + 90.0, height);
}

template <size_t kCount>
std::string legend(double y, const std::array<std::string_view, kCount>& colors,
                   const std::array<std::string, kCount>& names) {
  std::string drawn;
  double x = kLeft;
  for (size_t i = 0; i < kCount; ++i) {
    drawn += svg::legend_entry(x, y, colors[i], names[i]);
    x += svg::legend_width(names[i]);
  }
  return drawn;
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

std::string lane_svg(const std::vector<Block>& lane, double y, double height, double step_s) {
  std::string drawn;
  for (const Block& b : lane) {
    const double width = std::max((b.end_s - b.begin_s) / step_s * kWidth, kThinnest);
    drawn += svg::rect(kLeft + b.begin_s / step_s * kWidth, y, width, height, kBlockColors[b.kind],
                       fmt::format("{} of microbatch {}: {:.3f} to {:.3f} ms", kBlockNames[b.kind],
                                   b.microbatch, 1e3 * b.begin_s, 1e3 * b.end_s));
  }
  return drawn;
}

template <size_t kCount>
std::array<std::string, kCount> strings(const std::array<std::string_view, kCount>& views) {
  std::array<std::string, kCount> all;
  std::copy(views.begin(), views.end(), all.begin());
  return all;
}

std::string time_axis(double y, double step_s) {
  std::string drawn;
  for (int i = 0; i <= 4; ++i) {
    drawn +=
        svg::text(kLeft + kWidth * i / 4.0, y, fmt::format("{:.1f} ms", 1e3 * step_s * i / 4.0),
                  i == 0 ? "start" : "middle");
  }
  return drawn;
}

// Draws a line across a plot with `words` at its right end, `lower` below the line.
std::string marked_line(double y, std::string_view color, const std::string& words,
                        double lower = 0.0) {
  return svg::rect(kLeft, y - 0.5, kWidth, 1.0, color) +
         svg::text(kLeft + kWidth + 4.0, y + 4.0 + lower, words);
}

// Draws one area of a stack, on top of the arenas below it.
std::string area(std::span<const MemoryPoint> points, size_t arena, double step_s, double top) {
  std::string path;
  const auto x = [&](const MemoryPoint& p) { return kLeft + p.time_s / step_s * kWidth; };
  const auto y = [&](const MemoryPoint& p, size_t count) {
    double bytes = 0.0;
    for (size_t a = 0; a < count; ++a) bytes += p.bytes[a];
    return kHeight * (1.0 - bytes / top);
  };
  for (const MemoryPoint& p : points) {
    path += fmt::format("{}{:.2f} {:.2f}", path.empty() ? "M" : "L", x(p), y(p, arena + 1));
  }
  for (auto p = points.rbegin(); p != points.rend(); ++p)
    path += fmt::format("L{:.2f} {:.2f}", x(*p), y(*p, arena));
  return fmt::format("<path d=\"{}Z\" fill=\"{}\"/>\n", path, kArenaColors[arena]);
}

// Where the points of a sweep lie.
struct SweepAxes {
  std::function<double(size_t)> x_of;  // of a value
  double top = 0.0;
  double cross_y = 0.0;  // of what has no rate
};

// The line breaks at a point without a rate, where a cross says why.
std::string curve_svg(const SweepCurve& curve, std::string_view color, const SweepAxes& axes,
                      bool has_numbers) {
  std::string drawn;
  std::string path;
  bool is_broken = true;
  for (size_t i = 0; i < curve.points.size(); ++i) {
    const SweepPoint& point = curve.points[i];
    const double x = axes.x_of(i);
    if (!point.reason.empty()) {
      drawn += fmt::format(
          "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\" fill=\"{}\">x<title>{}"
          "</title></text>\n",
          x, axes.cross_y, has_numbers ? "#c00" : color, svg::escaped(point.reason));
      is_broken = true;
      continue;
    }
    const double y = kHeight * (1.0 - point.device_tokens_per_s / axes.top);
    const std::string rate = fmt::format("{:.1f}", point.device_tokens_per_s);
    path += fmt::format("{}{:.2f} {:.2f}", is_broken ? "M" : "L", x, y);
    is_broken = false;
    drawn += fmt::format(
        "<circle cx=\"{:.2f}\" cy=\"{:.2f}\" r=\"4\" fill=\"{}\"><title>{}</title></circle>\n", x,
        y, color, rate);
    if (has_numbers) drawn += svg::text(x, y - 8.0, rate, "middle");
  }
  return drawn + fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\"/>\n", path, color);
}

}  // namespace

std::vector<TimelineRow> timeline_rows(std::span<const PricedSpan> spans,
                                       std::span<const int> ranks, double step_s) {
  std::vector<TimelineRow> rows;
  for (const int rank : ranks) rows.push_back({.name = fmt::format("rank {}", rank)});
  const double thinnest_s = kThinnest / kWidth * step_s;
  for (const PricedSpan& s : spans) {
    TimelineRow& row = rows[s.rank];
    Block block{.kind = kind_of(*s.task),
                .microbatch = s.microbatch,
                .begin_s = s.begin_s,
                .end_s = s.end_s};
    if (s.stream != 0) block.kind = BlockKind::kCommunication;
    add_block(s.stream == 0 ? row.compute : row.communication, block, thinnest_s);
  }
  return rows;
}

std::string timeline_svg(std::span<const TimelineRow> rows, double step_s) {
  const double bottom = kRow * static_cast<double>(rows.size());
  std::string drawn = picture(bottom + 50.0);
  for (size_t r = 0; r < rows.size(); ++r) {
    const double y = kRow * static_cast<double>(r);
    drawn += svg::text(0.0, y + 14.0, rows[r].name) + svg::rect(kLeft, y, kWidth, kLane, "#8882");
    drawn += lane_svg(rows[r].compute, y, kLane, step_s);
    drawn += lane_svg(rows[r].communication, y + kLane, kRow - kLane - 3.0, step_s);
  }
  drawn += time_axis(bottom + 12.0, step_s);
  return drawn + legend(bottom + 28.0, kBlockColors, strings(kBlockNames)) + "</svg>\n";
}

std::string memory_svg(std::span<const MemoryPoint> points, double step_s, double planned_bytes,
                       double limit_bytes) {
  double most = std::max(planned_bytes, limit_bytes);
  for (const MemoryPoint& p : points) {
    double sum = 0.0;
    for (const double bytes : p.bytes) sum += bytes;
    most = std::max(most, sum);
  }
  const double top = 1.05 * most;
  std::string drawn = picture(kHeight + 50.0);
  drawn += svg::value_axis(kFrame, top, kGiB, "GiB");
  for (size_t a = 0; a < kNumDeviceArenas; ++a) drawn += area(points, a, step_s, top);
  // If lines are close, the words of the lower line go below those of the other.
  const double apart = kHeight * std::abs(limit_bytes - planned_bytes) / top;
  const double room = std::max(0.0, svg::kTextRow - apart);
  const auto line = [&](double bytes, double other, std::string_view color, std::string_view name) {
    drawn += marked_line(kHeight * (1.0 - bytes / top), color,
                         fmt::format("{:.1f} {}", bytes / kGiB, name), bytes < other ? room : 0.0);
  };
  line(limit_bytes, planned_bytes, "#c00", "limit");
  line(planned_bytes, limit_bytes, "#555", "planned");
  drawn += time_axis(kHeight + 12.0, step_s);
  return drawn + legend(kHeight + 28.0, kArenaColors, strings(kArenaNames)) + "</svg>\n";
}

std::string breakdown_svg(const StepPrice& step) {
  std::string drawn = picture(80.0);
  EnumArray<Category, std::string, kNumCategories> names;
  double x = kLeft;
  for (size_t c = 0; c < kNumCategories; ++c) {
    const double share = step.by_category[c] / step.seconds;
    names[c] = fmt::format("{} {:.1f} %", name_of(static_cast<Category>(c)), 100.0 * share);
    drawn += svg::rect(x, 0.0, share * kWidth, 30.0, kCategoryColors[c], names[c]);
    x += share * kWidth;
  }
  return drawn + legend(44.0, kCategoryColors, names) + "</svg>\n";
}

std::string sweep_svg(const std::string& key, std::span<const std::string> values,
                      std::span<const SweepCurve> curves) {
  double most = 0.0;
  for (const SweepCurve& curve : curves) {
    for (const SweepPoint& p : curve.points) most = std::max(most, p.device_tokens_per_s);
  }
  const double top = 1.1 * most;
  const bool is_alone = curves.size() == 1;
  std::string drawn = svg::value_axis(kFrame, top, 1.0, "tokens/s/GPU");
  const auto count = static_cast<double>(std::max<size_t>(values.size(), 2) - 1);
  const auto x_of = [&](size_t i) {
    return kLeft + 30.0 + (kWidth - 60.0) * static_cast<double>(i) / count;
  };
  // Long values alternate between several rows.
  size_t longest = 1;
  for (const std::string& value : values) longest = std::max(longest, value.size());
  const double width = svg::kCharacter * static_cast<double>(longest + 1);
  const auto num_rows = static_cast<size_t>(std::ceil(width / (x_of(1) - x_of(0))));
  for (size_t i = 0; i < values.size(); ++i) {
    const double y = kHeight + 14.0 + svg::kTextRow * static_cast<double>(i % num_rows);
    drawn += svg::text(x_of(i), y, values[i], "middle");
  }
  const double bottom = kHeight + svg::kTextRow * static_cast<double>(num_rows - 1);
  double legend_x = kLeft;
  double legend_y = bottom + 42.0;
  for (size_t c = 0; c < curves.size(); ++c) {
    const std::string_view color = svg::kCurveColors[c % svg::kNumCurveColors];
    const double cross_y = kHeight - 4.0 - 10.0 * static_cast<double>(c);
    drawn += curve_svg(curves[c], color, {.x_of = x_of, .top = top, .cross_y = cross_y}, is_alone);
    if (is_alone) continue;
    const double name_width = svg::legend_width(curves[c].name);
    if (legend_x > kLeft && legend_x + name_width > kLeft + kWidth) {
      legend_x = kLeft;
      legend_y += svg::kTextRow;
    }
    drawn += svg::legend_entry(legend_x, legend_y, color, curves[c].name);
    legend_x += name_width;
  }
  if (is_alone) {
    const auto first = std::find_if(curves[0].points.begin(), curves[0].points.end(),
                                    [](const SweepPoint& p) { return p.reason.empty(); });
    drawn += marked_line(kHeight * (1.0 - first->device_tokens_per_s / top), "#aaa", "the first");
  }
  return picture(is_alone ? bottom + 40.0 : legend_y + 18.0) + drawn +
         svg::text(kLeft + kWidth / 2.0, bottom + 32.0, key, "middle") + "</svg>\n";
}

std::string step_page(const Report& report, std::span<const TimelineRow> rows,
                      const MemoryInStep& memory) {
  const double step_s = report.step.seconds;
  std::string body = fmt::format("<pre>{}</pre>\n<h2>Where the time goes</h2>\n{}",
                                 svg::escaped(to_text(report)), breakdown_svg(report.step));
  body += fmt::format("<h2>The step</h2>\n{}", timeline_svg(rows, step_s));
  body += fmt::format(
      "<h2>Memory of rank {}</h2>\n{}", memory.rank,
      memory_svg(memory.points, step_s, memory.planned_bytes, report.memory_limit_bytes));
  return svg::page(fmt::format("{} on {} x {}", report.model, report.num_devices, report.machine),
                   body);
}

std::string sweep_page(const std::string& title, const std::string& table,
                       const std::string& curves) {
  return svg::page(title, fmt::format("<pre>{}</pre>\n{}", svg::escaped(table), curves));
}

}  // namespace tokamak::price
