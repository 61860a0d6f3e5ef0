#include "tokamak/exec/executor.h"

#include <algorithm>
#include <chrono>

#include "tokamak/core/error.h"
#include "tokamak/exec/communication.h"

namespace tokamak {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

Memory::Memory(Backend& backend, std::span<const Plan* const> plans) : backend_(&backend) {
  for (size_t a = 0; a < kNumArenas; ++a) {
    int64_t need = 0;
    for (const Plan* plan : plans) need = std::max(need, plan->arena_bytes[a]);
    if (need > 0) arenas_[a] = backend.allocate(need);
  }
}

std::byte* Memory::base(ArenaKind arena) const {
  const auto& allocation = arenas_[static_cast<size_t>(arena)];
  return allocation == nullptr ? nullptr : allocation->data();
}

int64_t Memory::bytes() const {
  int64_t total = 0;
  for (const auto& allocation : arenas_) total += allocation == nullptr ? 0 : allocation->bytes();
  return total;
}

std::byte* StateAccess::data(StateId id, int64_t offset, size_t bytes) const {
  const int64_t size = (*states_)[id].type.bytes();
  TOK_CHECK(offset >= 0 && offset + static_cast<int64_t>(bytes) <= size, "{}: {} bytes at {} of {}",
            (*states_)[id].name, bytes, offset, size);
  return memory_->base(ArenaKind::kState) + (*layout_)[id] + offset;
}

void StateAccess::write_at(StateId id, int64_t offset, std::span<const std::byte> bytes) const {
  memory_->backend().upload(data(id, offset, bytes.size()), bytes.data(),
                            static_cast<int64_t>(bytes.size()));
}

void StateAccess::read_at(StateId id, int64_t offset, std::span<std::byte> bytes) const {
  memory_->backend().download(bytes.data(), data(id, offset, bytes.size()),
                              static_cast<int64_t>(bytes.size()));
}

void StateAccess::write(StateId id, std::span<const std::byte> bytes) const {
  TOK_CHECK(static_cast<int64_t>(bytes.size()) == (*states_)[id].type.bytes(), "{}",
            (*states_)[id].name);
  write_at(id, 0, bytes);
}

void StateAccess::read(StateId id, std::span<std::byte> bytes) const {
  TOK_CHECK(static_cast<int64_t>(bytes.size()) == (*states_)[id].type.bytes(), "{}",
            (*states_)[id].name);
  read_at(id, 0, bytes);
}

Executor::Executor(const Plan& plan, const Memory& memory, std::span<Communicator* const> groups)
    : slots_(&plan.slots) {
  for (const Segment& segment : plan.segments) {
    std::vector<BoundTask> tasks;
    tasks.reserve(segment.tasks.size());
    for (const Task& task : segment.tasks) tasks.push_back(bind(task, memory, groups));
    segments_.push_back(std::move(tasks));
  }
  for (auto& segment : segments_) {
    for (BoundTask& task : segment) {
      for (KernelArgs& args : task.args) {
        args.in = task.in;
        args.out = task.out;
      }
    }
  }
}

Executor::BoundTask Executor::bind(const Task& task, const Memory& memory,
                                   std::span<Communicator* const> groups) const {
  const auto tensor = [&](const Operand& o) {
    const int64_t slot =
        o.arena == ArenaKind::kSlot ? (*slots_)[static_cast<size_t>(o.slot_class)].offset : 0;
    return Tensor{
        .data = memory.base(o.arena) + slot + o.offset, .type = o.type, .strides = o.strides};
  };
  BoundTask bound{.phase = task.label.phase, .task = &task};
  Types in;
  Types out;
  for (const Operand& o : task.in) {
    bound.in.push_back(tensor(o));
    in.push_back(o.type);
  }
  for (const Operand& o : task.out) {
    bound.out.push_back(tensor(o));
    out.push_back(o.type);
  }
  for (size_t later = 0; later < 2; ++later) {
    KernelArgs& args = bound.args[later];
    if (task.workspace_bytes > 0)
      args.workspace = memory.base(ArenaKind::kScratch) + task.workspace_offset;
    TOK_CHECK(task.out.size() <= args.accumulate.size(), "{}: {} outputs", task.rules->name,
              task.out.size());
    for (size_t k = 0; k < task.out.size(); ++k) {
      const auto mode = task.accumulate[k];
      args.accumulate[k] = mode && (*mode == AccumulateMode::kAlways ||
                                    (*mode == AccumulateMode::kFirstMicrobatch && later == 1));
    }
  }
  const KernelTypes types{.in = in, .out = out};
  bound.kernel =
      task.rules->is_communication
          ? communication_kernel(*task.rules, task.op.get(), types, groups)
          : memory.backend().prepare(*task.rules, task.op.get(), types, task.variant->name);
  return bound;
}

void Executor::run(const ScheduleItem& item) {
  const size_t later = item.is_first ? 0 : 1;
  auto phase_start = Clock::now();
  auto phase = Phase::kUnshard;
  bool any = false;
  for (const BoundTask& bound : segments_[static_cast<size_t>(item.segment)]) {
    if (phase_seconds_ != nullptr && (!any || bound.phase != phase)) {
      if (any) (*phase_seconds_)[static_cast<size_t>(phase)] += seconds_since(phase_start);
      phase = bound.phase;
      phase_start = Clock::now();
      any = true;
    }
    if (spans_ == nullptr) {
      bound.kernel(bound.args[later]);
      continue;
    }
    TaskSpan span{.task = bound.task, .begin_s = seconds_since({})};
    bound.kernel(bound.args[later]);
    span.end_s = seconds_since({});
    spans_->push_back(span);
  }
  if (any) (*phase_seconds_)[static_cast<size_t>(phase)] += seconds_since(phase_start);
}

}  // namespace tokamak
