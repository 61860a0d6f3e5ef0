#include "tokamak/train/profile_trace.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

namespace tokamak {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

}  // namespace

std::string chrome_trace(std::span<const TaskSpan> spans, int rank) {
  std::string text = fmt::format(
      "{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{{\"name\":\"process_name\",\"ph\":\"M\","
      "\"pid\":{},\"args\":{{\"name\":\"rank {}\"}}}}",
      rank, rank);
  std::set<int> streams;
  for (const TaskSpan& s : spans) streams.insert(s.task->stream);
  for (const int stream : streams) {
    text += fmt::format(
        ",\n{{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":{},\"tid\":{},"
        "\"args\":{{\"name\":\"{}\"}}}}",
        rank, stream, stream == 0 ? "compute" : fmt::format("communication {}", stream));
  }
  for (const TaskSpan& s : spans) {
    const Cost cost = cost_of(*s.task);
    const double seconds = std::max(s.end_s - s.begin_s, 1e-9);
    text += fmt::format(
        ",\n{{\"name\":\"{}\",\"cat\":\"{}\",\"ph\":\"X\",\"pid\":{},\"tid\":{},\"ts\":{:.3f},"
        "\"dur\":{:.3f},\"args\":{{\"variant\":\"{}\",\"block\":{},\"gflop\":{:.3f},"
        "\"gflop_per_s\":{:.1f},\"mib_sent\":{:.3f}}}}}",
        s.task->rules->name, name_of(s.task->label.phase), rank, s.task->stream, s.begin_s * 1e6,
        (s.end_s - s.begin_s) * 1e6, s.task->variant->name, s.task->label.block, cost.flops * 1e-9,
        cost.flops * 1e-9 / seconds, cost.bytes_sent / kMiB);
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
