// The loop that runs a plan. No allocation, no look-up, no decision after binding.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "tokamak/comm/communicator.h"
#include "tokamak/exec/backend.h"
#include "tokamak/graph/plan.h"

namespace tokamak {

/// The arenas of a run: exactly the bytes that its plans ask for. Plans of one run share them (they
/// never run at the same time): state is common, the others are as large as the largest plan needs.
class Memory {
 public:
  Memory(Backend& backend, std::span<const Plan* const> plans);

  std::byte* base(ArenaKind arena) const;
  int64_t bytes() const;

  Backend& backend() const { return *backend_; }

 private:
  Backend* backend_;
  std::array<std::unique_ptr<Allocation>, kNumArenas> arenas_;
};

/// Host access to named State, by copies.
class StateAccess {
 public:
  StateAccess(const Memory& memory, const StateTable& states, const StateLayout& layout)
      : memory_(&memory), states_(&states), layout_(&layout) {}

  const StateTable& states() const { return *states_; }

  /// REQUIRES: `bytes` of the State's exact size.
  void write(StateId id, std::span<const std::byte> bytes) const;
  void read(StateId id, std::span<std::byte> bytes) const;

  /// The same for the bytes from `offset` on. REQUIRES: they lie inside the State.
  void write_at(StateId id, int64_t offset, std::span<const std::byte> bytes) const;
  void read_at(StateId id, int64_t offset, std::span<std::byte> bytes) const;

  template <class T>
  void write(StateId id, std::span<const T> values) const {
    write(id, std::as_bytes(values));
  }

  template <class T>
  std::vector<T> read(StateId id) const {
    std::vector<T> values(static_cast<size_t>((*states_)[id].type.numel()));
    read(id, std::as_writable_bytes(std::span(values)));
    return values;
  }

 private:
  std::byte* data(StateId id, int64_t offset, size_t bytes) const;

  const Memory* memory_;
  const StateTable* states_;
  const StateLayout* layout_;
};

/// Seconds of the phases of the items run so far.
using PhaseTimes = std::array<double, 5>;  // by Phase

/// One task as it ran, for traces. Times in seconds of a steady clock.
struct TaskSpan {
  const Task* task = nullptr;
  double begin_s = 0.0;
  double end_s = 0.0;
};

/// A plan bound to memory: every kernel prepared, every pointer known. The plan must outlive it.
class Executor {
 public:
  /// `groups`: a communicator for each entry of plan.groups, which must outlive it too.
  Executor(const Plan& plan, const Memory& memory, std::span<Communicator* const> groups = {});

  /// Runs one segment for one microbatch.
  void run(const ScheduleItem& item);

  /// Adds to `seconds` by phase as segments run; null stops it.
  void time_phases(PhaseTimes* seconds) { phase_seconds_ = seconds; }

  /// Appends to `spans` as tasks run (a clock read around each task); null stops it.
  void trace(std::vector<TaskSpan>* spans) { spans_ = spans; }

 private:
  struct BoundTask {
    Kernel kernel;
    std::vector<Tensor> in;
    std::vector<Tensor> out;
    std::array<KernelArgs, 2> args;  // first microbatch, later ones
    Phase phase = Phase::kForward;
    const Task* task = nullptr;
  };

  BoundTask bind(const Task& task, const Memory& memory,
                 std::span<Communicator* const> groups) const;

  std::vector<std::vector<BoundTask>> segments_;
  const std::vector<SlotClass>* slots_ = nullptr;
  PhaseTimes* phase_seconds_ = nullptr;
  std::vector<TaskSpan>* spans_ = nullptr;
};

}  // namespace tokamak
