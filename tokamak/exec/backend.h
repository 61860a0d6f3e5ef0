// A backend: memory and kernels of one kind of device. The only virtual seam between the plan and a
// machine.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "tokamak/exec/device_streams.h"
#include "tokamak/graph/plan.h"

namespace tokamak {

/// Owns one arena's bytes, zeroed.
class Allocation {
 public:
  virtual ~Allocation() = default;
  virtual std::byte* data() const = 0;
  virtual int64_t bytes() const = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual Target target() const = 0;

  /// Zeroed device memory; throws Error with the amount wanted and had where the machine has too
  /// little.
  virtual std::unique_ptr<Allocation> allocate(int64_t bytes) = 0;

  /// Bytes handed out by allocate and not yet freed.
  virtual int64_t allocated_bytes() const = 0;

  virtual Kernel prepare(const OpRules& rules, const void* op, const KernelTypes& types,
                         std::string_view variant) = 0;

  /// A device's streams; null where kernels run on the calling thread.
  virtual DeviceStreams* streams() { return nullptr; }

  /// Called once by each thread that runs another stream than the first: its kernels are small and
  /// run beside compute, which has the cores.
  virtual void enter_stream_thread() {}

  /// Host to device and back, after all work that stream 0 was given before. `host` is free or full
  /// on return; an upload may still be on its way, but comes before later work of stream 0.
  virtual void upload(std::byte* device, const std::byte* host, int64_t bytes) = 0;
  virtual void clear(std::byte* device, int64_t bytes) = 0;  ///< to zeros
  virtual void download(std::byte* host, const std::byte* device, int64_t bytes) = 0;
};

/// The task's kernel. REQUIRES: it is no communication.
Kernel prepare(Backend& backend, const Task& task);

}  // namespace tokamak
