// Scalars of a step for the host: copied in the device's order, read some steps later.
#pragma once

#include <chrono>
#include <span>
#include <vector>

#include "tokamak/exec/memory.h"

namespace tokamak {

/// Scalars of State (f64 [1]) as they were after a step, and when that step ended.
struct StepScalars {
  std::vector<double> values;
  std::chrono::steady_clock::time_point at;
};

class ResultRing {
 public:
  /// Keeps at most `capacity` steps that were pushed and not yet popped.
  ResultRing(const StateAccess& access, std::vector<StateId> scalars, size_t capacity);

  /// Enqueues a copy of the scalars after all work enqueued so far. REQUIRES: size() < capacity.
  void push();

  /// Returns the oldest step's values, in the scalars' order; waits for them. REQUIRES: size() > 0.
  StepScalars pop();

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
  DeviceEvent origin_ = nullptr;
  std::chrono::steady_clock::time_point origin_at_;
  size_t first_ = 0;
  size_t size_ = 0;
};

}  // namespace tokamak
