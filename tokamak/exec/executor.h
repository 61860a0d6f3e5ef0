// The loop that runs a plan. No allocation, no look-up, no decision after binding.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

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

  /// Where the State lies on the device; for host backends a pointer that may be read and written
  /// between steps.
  std::byte* device_data(StateId id) const {
    return memory_->base(ArenaKind::kState) + (*layout_)[id];
  }

 private:
  const Memory* memory_;
  const StateTable* states_;
  const StateLayout* layout_;
};

/// Seconds and calls by op name, forward and backward apart; filled where asked for.
struct OpTimes {
  struct Entry {
    double seconds = 0.0;
    int64_t calls = 0;
    double flops = 0.0;
  };

  std::map<std::string, Entry> by_op;
};

/// Seconds of the phases of the items run so far.
using PhaseSeconds = std::array<double, 4>;  // by Phase

/// A plan bound to memory: every kernel prepared, every pointer known.
class Executor {
 public:
  Executor(const Plan& plan, const Memory& memory);

  /// Runs one segment for one microbatch.
  void run(const ScheduleItem& item);

  /// Adds to `seconds` by phase as segments run; null stops it.
  void time_phases(PhaseSeconds* seconds) { phase_seconds_ = seconds; }

  /// Adds to `times` by op as tasks run (a clock read around each task); null stops it.
  void time_ops(OpTimes* times) { op_times_ = times; }

 private:
  struct BoundTask {
    Kernel kernel;
    std::vector<Tensor> in;
    std::vector<Tensor> out;
    std::array<KernelArgs, 2> args;  // first microbatch, later ones
    Phase phase = Phase::kForward;
    const Task* task = nullptr;
  };

  BoundTask bind(const Task& task, const Memory& memory);

  std::vector<std::vector<BoundTask>> segments_;
  PhaseSeconds* phase_seconds_ = nullptr;
  OpTimes* op_times_ = nullptr;
};

}  // namespace tokamak
