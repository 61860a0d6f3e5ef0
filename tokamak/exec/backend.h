// A backend: memory and kernels of one kind of device. The only virtual seam between the plan and a
// machine.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>

#include "tokamak/core/random.h"
#include "tokamak/exec/device_streams.h"
#include "tokamak/plan/plan.h"

namespace tokamak {

/// Owns one arena's bytes, zeroed.
class Allocation {
 public:
  virtual ~Allocation() = default;
  virtual std::byte* data() const = 0;
  virtual int64_t bytes() const = 0;
};

/// Elements of a tensor that is drawn at random (random.h): `count` of them from `begin` on,
/// counted in row-major order in the columns [first_column, first_column + box_columns) of a matrix
/// of `columns`, from row `first_row` on. Element e is std * normal(random_u32(seed, stream, e)).
struct RandomRange {
  DType dtype = DType::kF32;
  uint64_t seed = 0;
  uint64_t stream = 0;
  double std = 1.0;
  TruncatedNormal normal;
  int64_t columns = 1;
  int64_t first_row = 0;
  int64_t first_column = 0;
  int64_t box_columns = 1;
  int64_t begin = 0;
  int64_t count = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual Target target() const = 0;

  /// Zeroed device memory; throws Error with the amount wanted and had where the machine has too
  /// little.
  virtual std::unique_ptr<Allocation> allocate(int64_t bytes) = 0;

  /// Bytes that a device can still hand out; absent where memory is the host's.
  virtual std::optional<int64_t> free_bytes() const { return std::nullopt; }

  /// Bytes handed out by allocate and not yet freed.
  virtual int64_t allocated_bytes() const = 0;

  /// Draws elements in the device's memory, in order with stream 0; false where only the host can.
  virtual bool draw(std::byte* /*device*/, const RandomRange& /*range*/) { return false; }

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
