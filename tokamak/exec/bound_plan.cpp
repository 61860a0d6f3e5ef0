#include "tokamak/exec/bound_plan.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <utility>

#include <fmt/ranges.h>

#include "tokamak/comm/communicator.h"
#include "tokamak/core/error.h"
#include "tokamak/exec/kernel.h"
#include "tokamak/ops/comm/collective.h"
#include "tokamak/plan/plan.h"

namespace tokamak {
namespace {

// The number of slices before `dim`, each cut on its own; 1 where whole values become rows.
int64_t slices_of(const Dims& dims, int dim) {
  return std::accumulate(dims.begin(), dims.begin() + std::max(dim, 0), int64_t{1},
                         std::multiplies<>());
}

struct Call {
  std::span<Communicator* const> groups;
  KernelTypes types;

  Kernel operator()(const AllGather& op) const {
    const TensorType x = types.in[0];
    const int64_t slices = slices_of(x.dims, op.dim);
    return [=, &c = of(op.group), n = x.numel() / slices, t = x.dtype](const KernelArgs& a) {
      TOK_CHECK(!a.accumulate[0], "an all-gather cannot add");
      c.all_gather_slices(a.in[0].data, a.out[0].data, slices, n, t, a.stream);
    };
  }

  Kernel operator()(const ReduceScatter& op) const {
    const TensorType y = types.out[0];
    const int64_t slices = slices_of(y.dims, op.dim);
    return [=, &c = of(op.group), n = y.numel() / slices, t = y.dtype](const KernelArgs& a) {
      TOK_CHECK(!a.accumulate[0], "a reduce-scatter cannot add");
      c.reduce_scatter_slices(a.in[0].data, a.out[0].data, slices, n, t, a.stream);
    };
  }

  Kernel operator()(const AllReduce& op) const {
    const TensorType x = types.in[0];
    return [&c = of(op.group), n = x.numel(), t = x.dtype, r = op.op](const KernelArgs& a) {
      c.all_reduce(a.in[0].data, a.out[0].data, n, t, r, a.stream);
    };
  }

  Kernel operator()(const AllToAll& op) const {
    const TensorType x = types.in[0];
    return [&c = of(op.group), n = x.numel() / op.group.size, t = x.dtype](const KernelArgs& a) {
      c.all_to_all(a.in[0].data, a.out[0].data, n, t, a.stream);
    };
  }

  Kernel operator()(const Shift& op) const {
    const TensorType x = types.in[0];
    const int size = op.group.size;
    const int up = (op.offset % size + size) % size;
    const int to = (op.group.rank + up) % size;
    const int from = (op.group.rank + size - up) % size;
    return [=, &c = of(op.group), n = x.numel(), t = x.dtype](const KernelArgs& a) {
      c.send_recv(a.in[0].data, to, a.out[0].data, from, n, t, a.stream);
    };
  }

  Kernel operator()(const Send& op) const {
    const TensorType x = types.in[0];
    return [&c = of(op.group), to = 1 - op.group.rank, n = x.numel(), t = x.dtype](
               const KernelArgs& a) { c.send_recv(a.in[0].data, to, nullptr, -1, n, t, a.stream); };
  }

  Kernel operator()(const Recv& op) const {
    const TensorType y = types.out[0];
    return [&c = of(op.group), from = 1 - op.group.rank, n = y.numel(),
            t = y.dtype](const KernelArgs& a) {
      c.send_recv(nullptr, -1, a.out[0].data, from, n, t, a.stream);
    };
  }

  Communicator& of(const CommGroup& group) const {
    const auto id = static_cast<size_t>(group.id);
    TOK_CHECK(group.id >= 0 && id < groups.size() && groups[id]->size() == group.size &&
                  groups[id]->rank() == group.rank,
              "group {} is not member {} of {}", group.id, group.rank, group.size);
    return *groups[id];
  }
};

// The kernel of `op` if it is one of Ts.
template <class... Ts>
Kernel pick(const OpRules& rules, const void* op, const Call& call) {
  Kernel kernel;
  ((&rules == &kRules<Ts> ? void(kernel = call(*static_cast<const Ts*>(op))) : void()), ...);
  return kernel;
}

// Returns the kernel of a communication task, which uses its group's entry in `groups` (by group
// id; the communicators must outlive it). Operands are dense.
Kernel communication_kernel(const Task& task, std::span<Communicator* const> groups) {
  const TaskTypes types(task);
  const Call call{.groups = groups, .types = types.kernel_types()};
  Kernel kernel = pick<AllGather, ReduceScatter, AllReduce, AllToAll, Shift, Send, Recv>(
      *task.rules, task.op.get(), call);
  TOK_CHECK(kernel, "{} is not a communication op", task.rules->name);
  return kernel;
}

int slot_of(const ScheduleItem& item, int slot_class) {
  return item.slots.empty() ? 0 : item.slots[slot_class];
}

std::vector<int> slot_classes_of(const Task& task) {
  std::set<int> classes;
  for (const auto* list : {&task.in, &task.out}) {
    for (const Operand& o : *list) {
      if (o.arena == ArenaKind::kSlot) classes.insert(o.slot_class);
    }
  }
  return {classes.begin(), classes.end()};
}

}  // namespace

const BoundSegment::Binding& BoundSegment::binding(const ScheduleItem& item) const {
  const auto is_before = [&](const Binding& b) {
    for (size_t k = 0; k < slot_classes.size(); ++k) {
      const int slot = slot_of(item, slot_classes[k]);
      if (b.slots[k] != slot) return b.slots[k] < slot;
    }
    return false;
  };
  const auto it = std::partition_point(bindings.begin(), bindings.end(), is_before);
  const auto is_wanted = [&](const Binding& b) {
    for (size_t k = 0; k < slot_classes.size(); ++k) {
      if (b.slots[k] != slot_of(item, slot_classes[k])) return false;
    }
    return true;
  };
  TOK_CHECK(it != bindings.end() && is_wanted(*it), "microbatch {} comes with slots {}",
            item.microbatch, fmt::join(item.slots, ","));
  return *it;
}

BoundPlan::BoundPlan(const Plan& plan, const Memory& memory, std::span<Communicator* const> groups)
    : plan_(plan), memory_(memory), streams_{{0, 0}} {
  for (const Segment& segment : plan.segments) {
    for (const Task& task : segment.tasks) streams_.emplace(task.stream, streams_.size());
  }
  for (int s = 0; s < std::ssize(plan.segments); ++s) segments_.push_back(bind(s, groups));
}

BoundSegment BoundPlan::bind(int segment, std::span<Communicator* const> groups) {
  const Segment& from = plan_.segments[segment];
  BoundSegment bound{.is_background = from.is_background};
  bound.by_stream.resize(streams_.size());
  bound.outlives.resize(streams_.size());
  TOK_CHECK(from.outliving_streams.empty() || (!from.is_background && !plan_.items.empty()),
            "{}: streams outlive the items of no schedule", from.name);
  for (const int stream : from.outliving_streams) {
    TOK_CHECK(stream != 0, "{}: compute outlives its item", from.name);
    bound.outlives[streams_.at(stream)] = true;
  }
  for (size_t t = 0; t < from.tasks.size(); ++t) {
    const Task& task = from.tasks[t];
    const size_t stream = streams_.at(task.stream);
    TOK_CHECK(stream != 0 || !from.is_background, "{}: {} runs in the background", from.name,
              task.rules->name);
    bound.tasks.push_back(bind(task, groups));
    bound.by_stream[stream].push_back(t);
    BoundTask& made = bound.tasks.back();
    made.stream = stream;
    made.count = std::ssize(bound.by_stream[stream]);
    for (const int w : task.waits) {
      BoundTask& before = bound.tasks[w];
      before.is_awaited = true;
      made.waits.push_back({.stream = streams_.at(before.task->stream), .count = before.count});
    }
  }
  bind_slots(segment, bound);
  return bound;
}

BoundTask BoundPlan::bind(const Task& task, std::span<Communicator* const> groups) const {
  return {.kernel = task.rules->is_communication ? communication_kernel(task, groups)
                                                 : prepare(memory_.backend(), task),
          .task = &task,
          .phase = task.label.phase,
          .is_communication = task.rules->is_communication,
          .last_microbatch_only = task.when == When::kLastMicrobatch};
}

void BoundPlan::bind_slots(int segment, BoundSegment& bound) {
  std::set<int> classes;
  for (const BoundTask& task : bound.tasks) {
    for (const int c : slot_classes_of(*task.task)) classes.insert(c);
  }
  bound.slot_classes.assign(classes.begin(), classes.end());
  const auto own = [](const std::vector<int>& of_classes, const ScheduleItem& item) {
    std::vector<int> slots;
    slots.reserve(of_classes.size());
    for (const int c : of_classes) slots.push_back(slot_of(item, c));
    return slots;
  };
  std::map<std::vector<int>, const ScheduleItem*> wanted;
  const ScheduleItem without_slots;
  if (plan_.items.empty()) wanted[own(bound.slot_classes, without_slots)] = &without_slots;
  for (const ScheduleItem& item : plan_.items) {
    if (item.segment == segment) wanted[own(bound.slot_classes, item)] = &item;
  }
  // Bindings in which a task's own slots are the same share its call.
  std::vector<std::map<std::vector<int>, const BoundCall*>> calls(bound.tasks.size());
  for (const auto& [slots, item] : wanted) {
    BoundSegment::Binding binding{.slots = slots};
    for (size_t t = 0; t < bound.tasks.size(); ++t) {
      const Task& task = *bound.tasks[t].task;
      const BoundCall*& made = calls[t][own(slot_classes_of(task), *item)];
      if (made == nullptr) made = call(task, *item);
      binding.calls.push_back(made);
    }
    bound.bindings.push_back(std::move(binding));
  }
}

const BoundCall* BoundPlan::call(const Task& task, const ScheduleItem& item) {
  BoundCall& made = calls_.emplace_back();
  for (const Operand& o : task.in) made.in.push_back(tensor(o, item));
  for (const Operand& o : task.out) made.out.push_back(tensor(o, item));
  for (size_t later = 0; later < 2; ++later) {
    KernelArgs& args = made.args[later];
    args.in = made.in;
    args.out = made.out;
    if (DeviceStreams* streams = memory_.backend().streams())
      args.stream = streams->stream(streams_.at(task.stream));
    if (task.workspace_bytes > 0)
      args.workspace = memory_.base(ArenaKind::kScratch) + task.workspace_offset;
    for (size_t k = 0; k < task.out.size(); ++k) {
      const auto mode = task.accumulate[k];
      if (!mode) continue;
      TOK_CHECK(k < args.accumulate.size(), "{}: output {} accumulates", task.rules->name, k);
      args.accumulate[k] = mode && (*mode == AccumulateMode::kAlways ||
                                    (*mode == AccumulateMode::kFirstMicrobatch && later == 1));
    }
  }
  return &made;
}

Tensor BoundPlan::tensor(const Operand& o, const ScheduleItem& item) const {
  int64_t offset = o.offset;
  if (o.arena == ArenaKind::kSlot) {
    offset += plan_.slots[o.slot_class].offset_of(slot_of(item, o.slot_class));
  }
  return {.data = memory_.base(o.arena) + offset, .type = o.type, .strides = o.strides};
}

}  // namespace tokamak
