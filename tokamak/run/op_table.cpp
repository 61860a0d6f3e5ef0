#include "tokamak/run/op_table.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include <fmt/format.h>

namespace tokamak {
namespace {

using Interval = std::pair<double, double>;

constexpr std::string_view kPartNames[] = {"GEMM", "attention", "memory-bound",
                                           "exposed communication", "idle"};

double length(const TaskSpan& s) {
  return std::max(s.end_s - s.begin_s, 0.0);
}

std::string shape_of(const Task& task, const Cost& cost) {
  const TensorType* largest = nullptr;
  bool is_any_scaled = false;
  for (const auto* operands : {&task.in, &task.out}) {
    for (const Operand& o : *operands) {
      if (largest == nullptr || o.type.bytes() > largest->bytes()) largest = &o.type;
      is_any_scaled = is_any_scaled || is_scaled(o.type.dtype);
    }
  }
  std::string shape = largest == nullptr ? "" : to_string(largest->dims);
  if (cost.kind == Cost::Kind::kGemm) shape = fmt::format("{} x {} x {}", cost.m, cost.n, cost.k);
  // The time of an op on 8-bit floats also depends on their scales and layouts.
  return is_any_scaled ? fmt::format("{}, {}", shape, task.rules->describe(task.op.get())) : shape;
}

double bytes_of(const Task& task, const Cost& cost) {
  double bytes = cost.bytes_read + cost.bytes_written;
  for (size_t k = 0; k < task.accumulate.size(); ++k) {
    if (task.accumulate[k] == AccumulateMode::kAlways)
      bytes += static_cast<double>(task.out[k].type.bytes());
  }
  return bytes;
}

double bytes_moved(const Cost& cost) {
  return cost.bytes_sent > 0.0 ? cost.bytes_sent : cost.bytes_written;
}

double floor_of(const Task& task, const Cost& cost, const DeviceRates& rates) {
  if (cost.kind == Cost::Kind::kCollective) return 0.0;
  const double flops_rate = task.in.empty() ? 0.0 : rates.gemm_flops(task.in[0].type.dtype);
  const bool is_product = cost.kind == Cost::Kind::kGemm || cost.kind == Cost::Kind::kAttention;
  if (rates.bytes_per_s <= 0.0 || (is_product && flops_rate <= 0.0)) return 0.0;
  return std::max(is_product ? cost.flops / flops_rate : 0.0,
                  bytes_of(task, cost) / rates.bytes_per_s);
}

std::vector<Interval> unite(std::vector<Interval> all) {
  std::ranges::sort(all);
  std::vector<Interval> united;
  for (const Interval& i : all) {
    if (!united.empty() && i.first <= united.back().second) {
      united.back().second = std::max(united.back().second, i.second);
    } else {
      united.push_back(i);
    }
  }
  return united;
}

double total(std::span<const Interval> united) {
  double seconds = 0.0;
  for (const auto& [begin, end] : united) seconds += end - begin;
  return seconds;
}

StepSummary::Part part_of(Cost::Kind kind) {
  switch (kind) {
    case Cost::Kind::kGemm:
      return StepSummary::kGemm;
    case Cost::Kind::kAttention:
      return StepSummary::kAttention;
    case Cost::Kind::kCollective:
      return StepSummary::kExposedComm;
    default:
      return StepSummary::kMemoryBound;
  }
}

std::string percent(double part, double whole) {
  return part > 0.0 && whole > 0.0 ? fmt::format("{:.1f}", 100.0 * part / whole) : "-";
}

std::string rate(double amount, double seconds) {
  return amount > 0.0 && seconds > 0.0 ? fmt::format("{:.3f}", 1e-12 * amount / seconds) : "-";
}

}  // namespace

double floor_seconds(const Task& task, const DeviceRates& rates) {
  return floor_of(task, cost_of(task), rates);
}

bool is_launch_bound(const Plan& plan, const Rates& rates) {
  double launches = 0.0;
  double floor = 0.0;
  for (const Segment& segment : plan.segments) {
    for (const Task& task : segment.tasks) {
      if (task.rules->is_communication) continue;
      launches += rates.launch_s;
      floor += floor_seconds(task, rates.best);
    }
  }
  return launches > 0.05 * floor;
}

std::vector<OpTime> time_by_op(std::span<const TaskSpan> spans, const DeviceRates& rates,
                               OpGrouping grouping) {
  std::map<std::tuple<std::string_view, std::string_view, std::string>, OpTime> rows;
  for (const TaskSpan& s : spans) {
    const Cost cost = cost_of(*s.task);
    const bool by_shape = grouping == OpGrouping::kByShape;
    const std::string_view variant = by_shape ? s.task->variant->name : "";
    const std::string shape = by_shape ? shape_of(*s.task, cost) : "";
    OpTime& t = rows[{s.task->rules->name, variant, shape}];
    t.op = s.task->rules->name;
    t.variant = variant;
    t.shape = shape;
    t.kind = cost.kind;
    t.calls += 1;
    t.seconds += length(s);
    t.flops += cost.flops;
    t.bytes += bytes_of(*s.task, cost);
    t.bytes_sent += cost.kind == Cost::Kind::kCollective ? bytes_moved(cost) : 0.0;
    t.floor_s += floor_of(*s.task, cost, rates);
  }
  std::vector<OpTime> list;
  list.reserve(rows.size());
  for (auto& [key, t] : rows) list.push_back(std::move(t));
  std::ranges::stable_sort(list,
                           [](const OpTime& a, const OpTime& b) { return a.seconds > b.seconds; });
  return list;
}

double StepSummary::floor_s() const {
  double seconds = 0.0;
  for (const Spent& part : parts) seconds += part.floor_s;
  return seconds;
}

StepSummary summarize(std::span<const TaskSpan> spans, const DeviceRates& rates,
                      const GroupTable& groups) {
  StepSummary summary;
  if (spans.empty()) return summary;
  double first = spans[0].begin_s;
  double last = spans[0].end_s;
  std::vector<Interval> on_zero;
  std::vector<Interval> on_any;
  std::map<std::pair<std::string, std::string_view>, StepSummary::GroupTraffic> traffic;
  for (const TaskSpan& s : spans) {
    const Cost cost = cost_of(*s.task);
    first = std::min(first, s.begin_s);
    last = std::max(last, s.end_s);
    on_any.emplace_back(s.begin_s, s.begin_s + length(s));
    if (s.task->stream == 0) {
      on_zero.emplace_back(on_any.back());
      StepSummary::Spent& part = summary.parts[part_of(cost.kind)];
      part.seconds += length(s);
      part.floor_s += floor_of(*s.task, cost, rates);
    }
    if (s.task->rules->is_communication) {
      const int id = s.task->rules->group(s.task->op.get()).id;
      const std::string name = id >= 0 && static_cast<size_t>(id) < groups.entries.size()
                                   ? groups.entries[id].name
                                   : fmt::format("group {}", id);
      StepSummary::GroupTraffic& t = traffic[{name, s.task->rules->name}];
      t.group = name;
      t.op = s.task->rules->name;
      t.calls += 1;
      t.seconds += length(s);
      t.bytes += bytes_moved(cost);
    }
  }
  summary.wall_s = last - first;
  const double busy = total(unite(std::move(on_any)));
  summary.parts[StepSummary::kExposedComm].seconds += busy - total(unite(std::move(on_zero)));
  summary.parts[StepSummary::kIdle].seconds = summary.wall_s - busy;
  for (auto& [key, t] : traffic) summary.groups.push_back(std::move(t));
  return summary;
}

std::string to_text(std::span<const OpTime> table, double wall_s) {
  size_t width = 0;
  for (const OpTime& t : table) width = std::max(width, t.shape.size());
  const bool by_shape = width > 0;
  const auto detail = [&](std::string_view variant, std::string_view shape) {
    return by_shape ? fmt::format("{:<14}{:<{}}", variant, shape, width + 1) : std::string();
  };
  std::string text =
      fmt::format("{:<22}{}{:>7}{:>12}{:>9}{:>10}{:>9}{:>10}\n", "op", detail("variant", "shape"),
                  "calls", "ms", "step %", "TFLOP/s", "TB/s", "floor %");
  for (const OpTime& t : table) {
    const bool is_product = t.kind == Cost::Kind::kGemm || t.kind == Cost::Kind::kAttention;
    const double bytes = t.kind == Cost::Kind::kCollective ? t.bytes_sent : t.bytes;
    text += fmt::format("{:<22}{}{:>7}{:>12.3f}{:>9}{:>10}{:>9}{:>10}\n", t.op,
                        detail(t.variant, t.shape), t.calls, 1e3 * t.seconds,
                        percent(t.seconds, wall_s), is_product ? rate(t.flops, t.seconds) : "-",
                        is_product ? "-" : rate(bytes, t.seconds), percent(t.floor_s, t.seconds));
  }
  return text;
}

std::string to_text(const StepSummary& summary) {
  const double floor_s = summary.floor_s();
  std::string text = fmt::format("step {:.3f} ms", 1e3 * summary.wall_s);
  if (floor_s > 0.0)
    text +=
        fmt::format(", floor {:.3f} ms ({} %)", 1e3 * floor_s, percent(floor_s, summary.wall_s));
  text +=
      fmt::format("\n{:<24}{:>12}{:>9}{:>12}{:>10}\n", "", "ms", "step %", "floor ms", "floor %");
  for (size_t p = 0; p < summary.parts.size(); ++p) {
    const StepSummary::Spent& part = summary.parts[p];
    text += fmt::format("{:<24}{:>12.3f}{:>9}{:>12}{:>10}\n", kPartNames[p], 1e3 * part.seconds,
                        percent(part.seconds, summary.wall_s),
                        part.floor_s > 0.0 ? fmt::format("{:.3f}", 1e3 * part.floor_s) : "-",
                        percent(part.floor_s, part.seconds));
  }
  if (summary.groups.empty()) return text;
  size_t width = 24;
  for (const auto& g : summary.groups) width = std::max(width, g.group.size() + 1);
  text += fmt::format("\n{:<{}}{:<16}{:>7}{:>12}{:>12}{:>12}\n", "group", width, "collective",
                      "calls", "ms", "MB", "bus GB/s");
  for (const auto& g : summary.groups) {
    text += fmt::format("{:<{}}{:<16}{:>7}{:>12.3f}{:>12.3f}{:>12.2f}\n", g.group, width, g.op,
                        g.calls, 1e3 * g.seconds, 1e-6 * g.bytes, 1e-9 * g.bus_bytes_per_s());
  }
  return text;
}

std::string op_report(std::span<const TaskSpan> spans, const DeviceRates& rates,
                      const GroupTable& groups) {
  const StepSummary summary = summarize(spans, rates, groups);
  return to_text(time_by_op(spans, rates, OpGrouping::kByShape), summary.wall_s) + "\n" +
         to_text(summary);
}

}  // namespace tokamak
