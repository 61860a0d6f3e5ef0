// What the host reads of a step: copied in the device's own order, looked at some steps later.
#pragma once

#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "tokamak/exec/memory.h"

namespace tokamak {

/// Scalars of State (f64 [1]), as they were after each step.
class ResultRing {
 public:
  /// At most `capacity` steps are kept that were pushed and not popped.
  ResultRing(const StateAccess& access, std::vector<StateId> scalars, size_t capacity);

  /// Enqueues a copy of the scalars behind all work given so far. REQUIRES: size() < capacity.
  void push();

  /// The oldest step's scalars, in their order; waits for them. REQUIRES: size() > 0.
  std::vector<double> pop();

  size_t size() const { return size_; }

 private:
  struct Entry {
    std::span<double> values;  // pinned, on a device
    DeviceEvent copied = nullptr;
  };

  const StateAccess access_;
  std::vector<StateId> scalars_;
  std::vector<double> host_;
  std::vector<Entry> ring_;
  size_t first_ = 0;
  size_t size_ = 0;
};

}  // namespace tokamak
