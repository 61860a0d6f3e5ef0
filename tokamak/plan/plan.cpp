#include "tokamak/plan/plan.h"

#include <algorithm>

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
    case ArenaKind::kHost:
      return "host";
  }
  return "?";
}

int64_t extent_bytes(const TensorType& type, const Dims& strides) {
  int64_t last = 0;
  for (size_t d = 0; d < type.dims.size(); ++d) {
    if (type.dims[d] == 0) return 0;
    last += (type.dims[d] - 1) * strides[d];
  }
  return (last + 1) * size_of(type.dtype);
}

int64_t Operand::extent_bytes() const {
  return tokamak::extent_bytes(type, strides);
}

TaskTypes::TaskTypes(const Task& task) {
  for (const Operand& o : task.in) in.push_back(o.type);
  for (const Operand& o : task.out) out.push_back(o.type);
}

Cost cost_of(const Task& task) {
  const TaskTypes types(task);
  return task.rules->cost(task.op.get(), types.in, types.out);
}

std::vector<ScheduleItem> Plan::schedule(int num_microbatches) const {
  if (!items.empty()) return items;
  std::vector<ScheduleItem> made;
  const int num_segments = static_cast<int>(segments.size());
  const auto runs = [&](int s) { return segments[s].runs; };
  for (int s = 0; s < num_segments;) {
    if (runs(s) != Segment::Runs::kPerMicrobatch) {
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

void Plan::hold_room_for(const Plan& other) {
  int64_t more = 0;
  for (size_t a = 0; a < kNumDeviceArenas; ++a) {
    const int64_t bytes = std::max(arena_bytes[a], other.arena_bytes[a]);
    more += bytes - arena_bytes[a];
    arena_bytes[a] = bytes;
  }
  if (more == 0) return;
  auto row = std::find_if(memory.begin(), memory.end(),
                          [](const MemoryRow& r) { return r.owner == kTemporariesRow; });
  if (row == memory.end()) row = memory.insert(row, {.owner = std::string(kTemporariesRow)});
  row->bytes += more;
}

int64_t Plan::peak_bytes() const {
  return std::accumulate(arena_bytes.begin(), arena_bytes.end(), -arena_bytes[ArenaKind::kHost]);
}

Transport Plan::transport_of(const Task& task) const {
  if (transports.empty() || !task.rules->is_communication) return Transport::kKernels;
  return transports.at(static_cast<size_t>(task.rules->group(task.op.get()).id));
}

namespace {

std::string show(const Operand& o) {
  const bool dense = o.strides == row_major(o.type.dims);
  const std::string in_class = o.slot_class < 0 ? "" : fmt::format(".{}", o.slot_class);
  return fmt::format("{}{}+{}:{}{}", name_of(o.arena), in_class, o.offset, to_string(o.type),
                     dense ? "" : fmt::format("/{}", fmt::join(o.strides, ",")));
}

std::string show(const Task& task) {
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
  const std::string attributes = task.rules->describe(task.op.get());
  std::string text = fmt::format("{} b{}{} {}/{}{}{} in {} out {}", name_of(task.label.phase),
                                 task.label.block, task.is_clone ? " again" : "", task.rules->name,
                                 task.variant->name, attributes.empty() ? "" : " ", attributes,
                                 fmt::join(in, " "), fmt::join(out, " "));
  if (task.workspace_bytes > 0)
    text += fmt::format(" workspace scratch+{}:{}", task.workspace_offset, task.workspace_bytes);
  if (task.when == When::kLastMicrobatch) text += " last microbatch";
  if (task.stream != 0) text += fmt::format(" stream {}", task.stream);
  if (!task.waits.empty()) text += fmt::format(" waits {}", fmt::join(task.waits, ","));
  return text;
}

std::string show(const ScheduleItem& item, const Plan& plan) {
  std::string text =
      fmt::format("{} microbatch {}{}{}", plan.segments[item.segment].name, item.microbatch,
                  item.is_first ? " first" : "", item.is_last ? " last" : "");
  for (size_t c = 0; c < item.slots.size(); ++c) {
    if (item.slots[c] >= 0) text += fmt::format(" slot.{} {}", c, item.slots[c]);
  }
  if (!item.waits.empty()) text += fmt::format(" waits {}", fmt::join(item.waits, ","));
  return text;
}

}  // namespace

int64_t scratch_bytes(const Segment& segment) {
  int64_t bytes = 0;
  for (const Task& task : segment.tasks) {
    if (task.workspace_bytes > 0)
      bytes = std::max(bytes, task.workspace_offset + task.workspace_bytes);
    for (const auto* operands : {&task.in, &task.out}) {
      for (const Operand& o : *operands) {
        if (o.arena == ArenaKind::kScratch) bytes = std::max(bytes, o.offset + o.extent_bytes());
      }
    }
  }
  return bytes;
}

std::string to_text(const Plan& plan) {
  std::string text;
  for (size_t a = 0; a < kNumArenas; ++a) {
    text +=
        fmt::format("arena {} {} bytes\n", name_of(static_cast<ArenaKind>(a)), plan.arena_bytes[a]);
  }
  if (plan.device_graphs) text += "stretches of tasks are replayed from device graphs\n";
  for (size_t c = 0; c < plan.slots.size(); ++c) {
    const SlotClass& slots = plan.slots[c];
    text += fmt::format(
        "slot.{} {} to {}: {} of {} bytes at {}\n", c, plan.segments[slots.first_segment].name,
        plan.segments[slots.last_segment].name, slots.count, slots.bytes, slots.offset);
  }
  for (size_t g = 0; g < plan.groups.entries.size(); ++g) {
    const GroupTable::Entry& group = plan.groups.entries[g];
    text += fmt::format("group {} {}: ranks {}\n", g, group.name, fmt::join(group.ranks, ","));
  }
  for (const Segment& segment : plan.segments) {
    text += fmt::format(
        "segment {} {}{}\n", segment.name,
        segment.runs == Segment::Runs::kPerMicrobatch ? "each microbatch" : "once a step",
        segment.is_background ? " in the background" : "");
    if (!segment.outliving_streams.empty())
      text += fmt::format("  outlived by stream {}\n", fmt::join(segment.outliving_streams, ","));
    for (const Task& task : segment.tasks) text += "  " + show(task) + "\n";
  }
  for (size_t i = 0; i < plan.items.size(); ++i)
    text += fmt::format("item {} {}\n", i, show(plan.items[i], plan));
  return text;
}

}  // namespace tokamak
