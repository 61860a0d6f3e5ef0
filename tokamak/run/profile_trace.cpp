#include "tokamak/run/profile_trace.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tokamak/run/scratch_use.h"

namespace tokamak {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

std::string_view verb_of(std::string_view op) {
  if (op == "all_gather") return "gather";
  if (op == "reduce_scatter" || op == "all_reduce") return "reduce";
  if (op == "all_to_all") return "exchange";
  return op == "recv" ? "receive" : op;
}

// Returns "gather tp", or the group's name alone if that says so already.
std::string lane_part(const Task& task, const GroupTable& groups) {
  const std::string_view verb = verb_of(task.rules->name);
  const auto id = static_cast<size_t>(task.rules->group(task.op.get()).id);
  if (id >= groups.entries.size()) return std::string(verb);
  const std::string& name = groups.entries[id].name;
  return name.find(verb) == std::string::npos ? fmt::format("{} {}", verb, name) : name;
}

// Returns names by stream: "gather tp, reduce tp".
std::map<int, std::string> lane_names(std::span<const TaskSpan> spans, const GroupTable& groups) {
  std::map<int, std::set<std::string>> parts;
  for (const TaskSpan& s : spans) {
    auto& of_stream = parts[s.task->stream];
    if (s.task->rules->is_communication) of_stream.insert(lane_part(*s.task, groups));
  }
  std::map<int, std::string> lanes;
  for (const auto& [stream, done] : parts) {
    lanes[stream] = stream == 0    ? "compute"
                    : done.empty() ? fmt::format("stream {}", stream)
                                   : fmt::format("{}", fmt::join(done, ", "));
  }
  return lanes;
}

std::unordered_map<const Task*, int64_t> scratch_by_task(const Plan& plan) {
  std::unordered_map<const Task*, int64_t> all;
  for (const Segment& segment : plan.segments) {
    const std::vector<int64_t> use = scratch_in_use(segment);
    for (size_t t = 0; t < use.size(); ++t) all[&segment.tasks[t]] = use[t];
  }
  return all;
}

std::string memory_counter(std::span<const TaskSpan> spans, const Plan& plan, int rank) {
  const auto scratch = scratch_by_task(plan);
  const auto planned = [&](ArenaKind arena) {
    return static_cast<double>(plan.arena_bytes[arena]) / kMiB;
  };
  std::string text;
  for (const TaskSpan& s : spans) {
    if (s.task->stream != 0) continue;
    text += fmt::format(
        ",\n{{\"name\":\"memory (MiB)\",\"ph\":\"C\",\"pid\":{},\"ts\":{:.3f},"
        "\"args\":{{\"state\":{:.1f},\"carried\":{:.1f},\"slot\":{:.1f},\"scratch\":{:.1f}}}}}",
        rank, s.begin_s * 1e6, planned(ArenaKind::kState), planned(ArenaKind::kCarried),
        planned(ArenaKind::kSlot), static_cast<double>(scratch.at(s.task)) / kMiB);
  }
  return text;
}

std::string task_event(const TaskSpan& s, int rank) {
  const Cost cost = cost_of(*s.task);
  const double seconds = std::max(s.end_s - s.begin_s, 1e-9);
  return fmt::format(
      ",\n{{\"name\":\"{}\",\"cat\":\"{}\",\"ph\":\"X\",\"pid\":{},\"tid\":{},\"ts\":{:.3f},"
      "\"dur\":{:.3f},\"args\":{{\"variant\":\"{}\",\"block\":{},\"gflop\":{:.3f},"
      "\"gflop_per_s\":{:.1f},\"mib_sent\":{:.3f}}}}}",
      s.task->rules->name, name_of(s.task->label.phase), rank, s.task->stream, s.begin_s * 1e6,
      (s.end_s - s.begin_s) * 1e6, s.task->variant->name, s.task->label.block, cost.flops * 1e-9,
      cost.flops * 1e-9 / seconds, cost.bytes_sent / kMiB);
}

std::string rank_events(const RankSpans& r) {
  std::string text = fmt::format(
      "{{\"name\":\"process_name\",\"ph\":\"M\","
      "\"pid\":{},\"args\":{{\"name\":\"rank {}\"}}}}",
      r.rank, r.rank);
  for (const auto& [stream, lane] : lane_names(r.spans, r.plan->groups)) {
    text += fmt::format(
        ",\n{{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":{},\"tid\":{},"
        "\"args\":{{\"name\":\"{}\"}}}}"
        ",\n{{\"name\":\"thread_sort_index\",\"ph\":\"M\",\"pid\":{},\"tid\":{},"
        "\"args\":{{\"sort_index\":{}}}}}",
        r.rank, stream, lane, r.rank, stream, stream);
  }
  for (const TaskSpan& s : r.spans) text += task_event(s, r.rank);
  return text + memory_counter(r.spans, *r.plan, r.rank);
}

}  // namespace

std::string chrome_trace(std::span<const TaskSpan> spans, const Plan& plan, int rank) {
  const RankSpans one{.spans = spans, .plan = &plan, .rank = rank};
  return chrome_trace({&one, 1});
}

std::string chrome_trace(std::span<const RankSpans> ranks) {
  std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  for (size_t r = 0; r < ranks.size(); ++r) text += (r == 0 ? "" : ",\n") + rank_events(ranks[r]);
  return text + "\n]}\n";
}

}  // namespace tokamak
