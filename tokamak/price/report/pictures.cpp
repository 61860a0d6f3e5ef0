#include "tokamak/price/report/pictures.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "tokamak/core/bytes.h"
#include "tokamak/core/enum_array.h"
#include "tokamak/core/page.h"

namespace tokamak::price {
namespace {

constexpr size_t kMostRows = 24;
constexpr double kFewBlocks = 2'000.0;  // that have titles
constexpr double kMostBlocks = 24'000.0;
constexpr EnumArray<BlockKind, std::string_view, kNumBlockKinds> kBlockNames = {
    "forward", "backward", "weight gradients", "once a step", "communication"};
constexpr EnumArray<BlockKind, int, kNumBlockKinds> kBlockColors = {0, 1, 2, 4, 3};
constexpr EnumArray<Category, int, kNumCategories> kCategoryColors = {0, 1, 2, 3, 4, 7, 5};
constexpr EnumArray<ArenaKind, int, kNumDeviceArenas> kArenaColors = {0, 5, 1, 2};

// Names of arenas' contents, for people.
constexpr EnumArray<ArenaKind, std::string_view, kNumDeviceArenas> kArenaNames = {
    "weights, gradients, moments", "compute weights", "saved activations of the pipeline",
    "activations and temporaries of a microbatch"};

double time_unit(double step_s) {
  return step_s < 2.0 ? 1e3 : 1.0;
}

OrderedJson time_axis(double step_s) {
  return {{"name", step_s < 2.0 ? "ms of the step" : "s of the step"},
          {"min", 0},
          {"max", rounded(time_unit(step_s) * step_s)}};
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

// Returns the first rate of a curve, or 0.
double first_rate(const SweepCurve& curve) {
  const auto first = std::find_if(curve.points.begin(), curve.points.end(),
                                  [](const SweepPoint& p) { return p.reason.empty(); });
  return first == curve.points.end() ? 0.0 : first->device_tokens_per_s;
}

OrderedJson dots(const std::string& name, int color, std::string_view style, OrderedJson points) {
  return {{"name", name},
          {"kind", "dots"},
          {"color", color},
          {"style", style},
          {"points", std::move(points)}};
}

OrderedJson curves_chart(const SweepPicture& sweep, const std::vector<double>& numbers) {
  const bool is_of_gpus = sweep.key == "gpus";
  OrderedJson series = OrderedJson::array();
  OrderedJson without = OrderedJson::array();
  for (size_t c = 0; c < sweep.curves.size(); ++c) {
    const SweepCurve& curve = sweep.curves[c];
    const int color = static_cast<int>(c) % kGrey;
    const double first = first_rate(curve);
    std::vector<PlotPoint> line;
    OrderedJson points = OrderedJson::array();
    for (size_t i = 0; i < numbers.size(); ++i) {
      const SweepPoint& p = curve.points[i];
      line.push_back({.x = numbers[i], .y = p.reason.empty() ? p.device_tokens_per_s : NAN});
      if (!p.reason.empty()) {
        without.push_back({numbers[i], 0.03 * static_cast<double>(1 + c), p.reason});
        continue;
      }
      points.push_back(
          {numbers[i], rounded(p.device_tokens_per_s),
           fmt::format("{}{} {}: {:.1f} tokens/s/GPU, {:.1f} % of the first",
                       curve.name.empty() ? "" : curve.name + ", ", sweep.key, sweep.values[i],
                       p.device_tokens_per_s, 100.0 * p.device_tokens_per_s / first)});
    }
    std::sort(line.begin(), line.end(), [](const auto& a, const auto& b) { return a.x < b.x; });
    if (is_of_gpus && first > 0.0)
      series.push_back({{"name", "ideal: the first value's rate (dashed)"},
                        {"kind", "line"},
                        {"color", sweep.curves.size() == 1 ? kGrey : color},
                        {"dashed", true},
                        {"points", points_json({{.x = line.front().x, .y = first},
                                                {.x = line.back().x, .y = first}})}});
    series.push_back({{"kind", "line"}, {"color", color}, {"points", points_json(line)}});
    series.push_back(
        dots(curve.name.empty() ? "priced" : curve.name, color, "circle", std::move(points)));
  }
  OrderedJson published = OrderedJson::array();
  for (const PublishedPoint& p : sweep.published)
    published.push_back({p.value, rounded(p.device_tokens_per_s), p.title});
  if (!published.empty())
    series.push_back(dots("published", kRed, "rectRot", std::move(published)));
  if (!without.empty()) {
    series.push_back(dots("no price", kRed, "crossRot", std::move(without)));
    series.back()["marks"] = true;
  }
  std::vector<double> all = numbers;
  for (const PublishedPoint& p : sweep.published) all.push_back(p.value);
  const auto [low, high] = std::minmax_element(all.begin(), all.end());
  const bool is_log = *high > 4.0 * *low;
  const double edge = is_log ? 0.15 * *low : 0.04 * (*high - *low) + 0.01 * *low;
  return {{"height", 320},
          {"legend", true},
          {"bars", true},
          {"x",
           {{"name", sweep.key},
            {"log", is_log},
            {"ticks", numbers},
            {"min", *low - edge},
            {"max", is_log ? 1.15 * *high : *high + edge}}},
          {"y", {{"name", "tokens/s/GPU"}, {"min", 0}}},
          {"series", series}};
}

// Values that are no numbers are rows, so that their names have room.
OrderedJson rows_chart(const SweepPicture& sweep) {
  OrderedJson series = OrderedJson::array();
  const auto count = static_cast<double>(sweep.curves.size());
  for (size_t c = 0; c < sweep.curves.size(); ++c) {
    OrderedJson points = OrderedJson::array();
    for (size_t i = 0; i < sweep.values.size(); ++i) {
      const SweepPoint& p = sweep.curves[c].points[i];
      const double y =
          static_cast<double>(i) + 0.8 * ((static_cast<double>(c) + 0.5) / count - 0.5);
      points.push_back({0, rounded(p.device_tokens_per_s), rounded(y),
                        p.reason.empty() ? fmt::format("{:.1f}", p.device_tokens_per_s)
                                         : p.reason.substr(0, 80)});
    }
    series.push_back({{"name", sweep.curves[c].name},
                      {"kind", "bars"},
                      {"color", c % kGrey},
                      {"words", true},
                      {"points", points}});
  }
  return {{"height", 60.0 + (12.0 + 18.0 * count) * static_cast<double>(sweep.values.size())},
          {"legend", sweep.curves.size() > 1},
          {"bars", true},
          {"right", 60},
          {"x", {{"name", "tokens/s/GPU"}, {"min", 0}}},
          {"y", {{"name", sweep.key}, {"labels", sweep.values}}},
          {"series", series}};
}

OrderedJson breakdown_chart(const StepPrice& step) {
  OrderedJson names = OrderedJson::array();
  OrderedJson series = OrderedJson::array();
  for (size_t c = 0; c < kNumCategories; ++c) {
    const double share = 100.0 * step.by_category[c] / step.seconds;
    names.push_back(name_of(static_cast<Category>(c)));
    OrderedJson points = OrderedJson::array();
    points.push_back({0, rounded(share), c, fmt::format("{:.1f} %", share)});
    series.push_back(
        {{"kind", "bars"}, {"color", kCategoryColors[c]}, {"words", true}, {"points", points}});
  }
  return {{"height", 240},
          {"bars", true},
          {"right", 60},
          {"x", {{"name", "% of the step"}, {"min", 0}}},
          {"y", {{"labels", names}}},
          {"series", series}};
}

OrderedJson timeline_chart(std::span<const TimelineRow> rows, double step_s) {
  const double unit = time_unit(step_s);
  double num_blocks = 0.0;
  for (const TimelineRow& row : rows)
    num_blocks += static_cast<double>(row.compute.size() + row.communication.size());
  const bool has_titles = num_blocks <= kFewBlocks;
  OrderedJson names = OrderedJson::array();
  EnumArray<BlockKind, OrderedJson, kNumBlockKinds> points;
  points.fill(OrderedJson::array());
  for (size_t r = 0; r < rows.size(); ++r) {
    names.push_back(rows[r].name);
    for (const bool is_compute : {true, false}) {
      const double y = static_cast<double>(r) + (is_compute ? -0.12 : 0.3);
      for (const Block& b : is_compute ? rows[r].compute : rows[r].communication) {
        OrderedJson block = {rounded(unit * b.begin_s), rounded(unit * b.end_s), y};
        if (has_titles)
          block.push_back(fmt::format("{} of microbatch {}: {:.3f} to {:.3f} ms",
                                      kBlockNames[b.kind], b.microbatch, 1e3 * b.begin_s,
                                      1e3 * b.end_s));
        points[b.kind].push_back(std::move(block));
      }
    }
  }
  OrderedJson series = OrderedJson::array();
  for (size_t k = 0; k < kNumBlockKinds; ++k) {
    const bool is_thin = static_cast<BlockKind>(k) == BlockKind::kCommunication;
    series.push_back({{"name", kBlockNames[k]},
                      {"kind", "bars"},
                      {"color", kBlockColors[k]},
                      {"thickness", is_thin ? 6 : 15},
                      {"points", std::move(points[k])}});
  }
  return {{"height", 130 + 30 * rows.size()}, {"legend", true},           {"bars", true},
          {"x", time_axis(step_s)},           {"y", {{"labels", names}}}, {"series", series}};
}

// Draws the bytes in use, under lines for planned bytes (which include slots that wait for their
// next microbatch) and for the memory of a device.
OrderedJson memory_chart(const MemoryInStep& memory, double step_s, double limit_bytes) {
  OrderedJson series = OrderedJson::array();
  for (size_t a = 0; a < kNumDeviceArenas; ++a) {
    std::vector<PlotPoint> sums;
    for (const MemoryPoint& p : memory.points) {
      double sum = 0.0;
      for (size_t below = 0; below <= a; ++below) sum += p.bytes[below];
      sums.push_back({.x = time_unit(step_s) * p.time_s, .y = sum / kGiB});
    }
    series.push_back({{"name", kArenaNames[a]},
                      {"kind", "area"},
                      {"color", kArenaColors[a]},
                      {"points", points_json(sums)}});
  }
  const auto level = [&](std::string_view name, double bytes, int color) {
    series.push_back(
        {{"name", fmt::format("{} {:.1f} GiB (dashed)", name, bytes / kGiB)},
         {"kind", "line"},
         {"color", color},
         {"dashed", true},
         {"points", points_json({{.x = 0.0, .y = bytes / kGiB},
                                 {.x = time_unit(step_s) * step_s, .y = bytes / kGiB}})}});
  };
  level("planned", memory.planned_bytes, kGrey);
  level("limit", limit_bytes, kRed);
  return {{"height", 320},
          {"legend", true},
          {"x", time_axis(step_s)},
          {"y", {{"name", "GiB"}, {"min", 0}}},
          {"series", series}};
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

std::string step_page(const Report& report, std::span<const TimelineRow> rows,
                      const MemoryInStep& memory) {
  const double step_s = report.step.seconds;
  return html_page(fmt::format("{} on {} x {}", report.model, report.num_devices, report.machine),
                   {{{"pre", to_text(report)}},
                    {{"heading", "Where the time goes"}, {"chart", breakdown_chart(report.step)}},
                    {{"heading", "The step"}, {"chart", timeline_chart(rows, step_s)}},
                    {{"heading", fmt::format("Memory of rank {}", memory.rank)},
                     {"chart", memory_chart(memory, step_s, report.memory_limit_bytes)}}});
}

std::string sweep_page(const std::string& title, const std::string& table,
                       const SweepPicture& sweep) {
  const std::vector<double> numbers = numbers_of(sweep.values);
  const bool has_numbers = numbers.size() == sweep.values.size();
  return html_page(title,
                   {{{"pre", table}},
                    {{"chart", has_numbers ? curves_chart(sweep, numbers) : rows_chart(sweep)}}});
}

}  // namespace tokamak::price
