#include "tokamak/graph/plan.h"

#include <algorithm>
#include <map>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tokamak/core/error.h"

namespace tokamak {

std::string_view name_of(ArenaKind arena) {
  switch (arena) {
    case ArenaKind::kState:
      return "state";
    case ArenaKind::kCarried:
      return "carried";
    case ArenaKind::kSlot:
      return "slot";
    case ArenaKind::kScratch:
      return "scratch";
  }
  return "?";
}

StateLayout lay_out(const StateTable& states) {
  std::vector<int32_t> order(static_cast<size_t>(states.size()));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const StateDecl& x = states[{a}];
    const StateDecl& y = states[{b}];
    return std::pair(x.kind, x.block) < std::pair(y.kind, y.block);
  });
  StateLayout layout{.offsets = std::vector<int64_t>(order.size())};
  for (const int32_t i : order) {
    layout.offsets[static_cast<size_t>(i)] = layout.bytes;
    const int64_t bytes = states[{i}].type.bytes();
    layout.bytes += (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
  }
  return layout;
}

int64_t Operand::extent_bytes() const {
  int64_t last = 0;
  for (size_t d = 0; d < type.dims.size(); ++d) {
    if (type.dims[d] == 0) return 0;
    last += (type.dims[d] - 1) * strides[d];
  }
  return (last + 1) * size_of(type.dtype);
}

Cost cost_of(const Task& task) {
  Types in;
  Types out;
  for (const Operand& o : task.in) in.push_back(o.type);
  for (const Operand& o : task.out) out.push_back(o.type);
  return task.rules->cost(task.op.get(), in, out);
}

std::vector<ScheduleItem> Plan::schedule(int num_microbatches) const {
  if (!items.empty()) return items;
  std::vector<ScheduleItem> made;
  const int num_segments = static_cast<int>(segments.size());
  const auto runs = [&](int s) { return segments[static_cast<size_t>(s)].runs; };
  for (int s = 0; s < num_segments;) {
    if (runs(s) == Segment::Runs::kOncePerStep) {
      made.push_back({.segment = s++});
      continue;
    }
    int end = s;
    while (end < num_segments && runs(end) == Segment::Runs::kPerMicrobatch) ++end;
    for (int m = 0; m < num_microbatches; ++m) {
      for (int k = s; k < end; ++k)
        made.push_back({.segment = k,
                        .microbatch = m,
                        .is_first = m == 0,
                        .is_last = m + 1 == num_microbatches});
    }
    s = end;
  }
  return made;
}

int64_t Plan::peak_bytes() const {
  return std::accumulate(arena_bytes.begin(), arena_bytes.end(), int64_t{0});
}

namespace {

std::string show(const Operand& o) {
  const bool dense = o.strides == row_major(o.type.dims);
  return fmt::format("{}+{}:{}{}", name_of(o.arena), o.offset, to_string(o.type),
                     dense ? "" : fmt::format("/{}", fmt::join(o.strides, ",")));
}

struct Access {
  int task;
  bool writes;
  ArenaKind arena;
  int64_t begin;
  int64_t end;
};

std::vector<Access> accesses_of(const Segment& segment) {
  std::vector<Access> list;
  for (size_t t = 0; t < segment.tasks.size(); ++t) {
    const Task& task = segment.tasks[t];
    const auto add = [&](const Operand& o, bool writes) {
      list.push_back({static_cast<int>(t), writes, o.arena, o.offset, o.offset + o.extent_bytes()});
    };
    for (const Operand& o : task.in) add(o, false);
    for (const Operand& o : task.out) add(o, true);
    if (task.workspace_bytes > 0) {
      list.push_back({static_cast<int>(t), true, ArenaKind::kScratch, task.workspace_offset,
                      task.workspace_offset + task.workspace_bytes});
    }
  }
  return list;
}

using Clock = std::map<int, int>;  // stream -> last task of it that has ended

std::vector<Clock> vector_clocks(const Segment& segment) {
  std::vector<Clock> clocks;
  std::map<int, Clock> at_stream;
  for (size_t t = 0; t < segment.tasks.size(); ++t) {
    const Task& task = segment.tasks[t];
    Clock clock = at_stream[task.stream];
    for (const int w : task.waits) {
      TOK_CHECK(w >= 0 && w < static_cast<int>(t), "task {} of {} waits for {}", t, segment.name,
                w);
      for (const auto& [stream, last] : clocks[static_cast<size_t>(w)])
        clock[stream] = std::max(clock[stream], last);
    }
    clock[task.stream] = static_cast<int>(t);
    at_stream[task.stream] = clock;
    clocks.push_back(std::move(clock));
  }
  return clocks;
}

}  // namespace

std::string to_text(const Plan& plan) {
  std::string text;
  for (size_t a = 0; a < kNumArenas; ++a) {
    text +=
        fmt::format("arena {} {} bytes\n", name_of(static_cast<ArenaKind>(a)), plan.arena_bytes[a]);
  }
  for (const Segment& segment : plan.segments) {
    text += fmt::format(
        "segment {} {}\n", segment.name,
        segment.runs == Segment::Runs::kOncePerStep ? "once a step" : "each microbatch");
    for (const Task& task : segment.tasks) {
      std::vector<std::string> in;
      std::vector<std::string> out;
      for (const Operand& o : task.in) in.push_back(show(o));
      for (size_t k = 0; k < task.out.size(); ++k) {
        const auto mode = task.accumulate[k];
        const char* sign = !mode                              ? ""
                           : *mode == AccumulateMode::kAlways ? "+= "
                           : *mode == AccumulateMode::kNever  ? "= "
                                                              : "(+)= ";
        out.push_back(sign + show(task.out[k]));
      }
      text += fmt::format(
          "  {} b{}{} {}/{}{} in {} out {}{}\n", name_of(task.label.phase), task.label.block,
          task.is_clone ? " again" : "", task.rules->name, task.variant->name,
          task.rules->describe(task.op.get()), fmt::join(in, " "), fmt::join(out, " "),
          task.workspace_bytes > 0
              ? fmt::format(" workspace scratch+{}:{}", task.workspace_offset, task.workspace_bytes)
              : "");
    }
  }
  return text;
}

void check_plan(const Plan& plan) {
  for (const Segment& segment : plan.segments) {
    const std::vector<Clock> clocks = vector_clocks(segment);
    const auto is_before = [&](int a, int b) {
      const int stream = segment.tasks[static_cast<size_t>(a)].stream;
      const auto it = clocks[static_cast<size_t>(b)].find(stream);
      return it != clocks[static_cast<size_t>(b)].end() && it->second >= a;
    };
    const std::vector<Access> list = accesses_of(segment);
    for (size_t i = 0; i < list.size(); ++i) {
      const Access& x = list[i];
      TOK_CHECK(x.begin >= 0 && x.end <= plan.arena_bytes[static_cast<size_t>(x.arena)],
                "{}: task {} leaves arena {}", segment.name, x.task, name_of(x.arena));
      for (size_t j = i + 1; j < list.size(); ++j) {
        const Access& y = list[j];
        const bool touch =
            x.arena == y.arena && x.begin < y.end && y.begin < x.end && (x.writes || y.writes);
        if (!touch || x.task == y.task) continue;
        TOK_CHECK(is_before(x.task, y.task) || is_before(y.task, x.task),
                  "{}: tasks {} and {} race for {}+{}", segment.name, x.task, y.task,
                  name_of(x.arena), std::max(x.begin, y.begin));
      }
    }
  }
}

}  // namespace tokamak
