#include "tokamak/train/profile_trace.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

namespace tokamak {

std::string chrome_trace(std::span<const TaskSpan> spans) {
  std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  const double start = spans.empty() ? 0.0 : spans.front().begin_s;
  for (const TaskSpan& s : spans) {
    const Cost cost = cost_of(*s.task);
    text += fmt::format(
        "{}\n{{\"name\":\"{}\",\"cat\":\"{}\",\"ph\":\"X\",\"pid\":0,\"tid\":\"{}\",\"ts\":{:.3f},"
        "\"dur\":{:.3f},"
        "\"args\":{{\"variant\":\"{}\",\"block\":{},\"gflop\":{:.3f},\"gflop_per_s\":{:.1f}}}}}",
        &s == spans.data() ? "" : ",", s.task->rules->name, name_of(s.task->label.phase),
        name_of(s.task->label.phase), (s.begin_s - start) * 1e6, (s.end_s - s.begin_s) * 1e6,
        s.task->variant->name, s.task->label.block, cost.flops * 1e-9,
        cost.flops * 1e-9 / std::max(s.end_s - s.begin_s, 1e-9));
  }
  return text + "\n]}\n";
}

std::vector<OpTime> time_by_op(std::span<const TaskSpan> spans) {
  std::map<std::string_view, OpTime> by_op;
  for (const TaskSpan& s : spans) {
    const Cost cost = cost_of(*s.task);
    OpTime& t = by_op[s.task->rules->name];
    t.op = s.task->rules->name;
    t.calls += 1;
    t.seconds += s.end_s - s.begin_s;
    t.flops += cost.flops;
    t.bytes += cost.bytes_read + cost.bytes_written;
  }
  std::vector<OpTime> list;
  for (auto& [name, t] : by_op) list.push_back(std::move(t));
  std::sort(list.begin(), list.end(),
            [](const OpTime& a, const OpTime& b) { return a.seconds > b.seconds; });
  return list;
}

}  // namespace tokamak
