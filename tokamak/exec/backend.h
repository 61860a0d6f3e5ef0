// A backend: memory and kernels of one kind of device. The only virtual seam between the plan and a
// machine.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
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

/// A range of a tensor that is drawn at random (random.h): `count` elements from `begin` on,
/// counted in row-major order in the columns [first_column, first_column + box_columns) of a matrix
/// with `columns`, from row `first_row` on. Element e is std * normal(random_u32(seed, stream, e)).
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

  /// Returns what the bits of results depend on besides the program: the instruction sets of a
  /// CPU, the model of a GPU.
  virtual std::string arithmetic() const { return ""; }

  /// Returns zeroed device memory; throws Error with the bytes wanted and available if there are
  /// too few.
  virtual std::unique_ptr<Allocation> allocate(int64_t bytes) = 0;

  /// Returns zeroed host memory that kernels read and write, over the device's link where there is
  /// one; throws like allocate().
  virtual std::unique_ptr<Allocation> allocate_host(int64_t bytes) { return allocate(bytes); }

  /// Returns device memory that no plan counts, or null: if less than `left` bytes would be left
  /// for others, or where memory is the host's.
  virtual std::unique_ptr<Allocation> allocate_spare(int64_t /*bytes*/, int64_t /*left*/) {
    return nullptr;
  }

  /// Copies within the device's memory, after all work of stream 0 and before its later work.
  /// REQUIRES: allocate_spare() has returned memory.
  virtual void copy_within(std::byte* /*to*/, const std::byte* /*from*/, int64_t /*bytes*/) {}

  /// Bytes that the device can still hand out; absent where memory is the host's.
  virtual std::optional<int64_t> free_bytes() const { return std::nullopt; }

  /// Bytes handed out by allocate and not yet freed.
  virtual int64_t allocated_bytes() const = 0;

  /// Draws elements in the device's memory, in order with stream 0; returns false where only the
  /// host can draw them.
  virtual bool draw(std::byte* /*device*/, const RandomRange& /*range*/) { return false; }

  virtual Kernel prepare(const OpRules& rules, const void* op, const KernelTypes& types,
                         std::string_view variant) = 0;

  /// A device's streams; null where kernels run on the calling thread.
  virtual DeviceStreams* streams() { return nullptr; }

  /// Called once by each thread that runs a stream other than 0: its kernels are small and run
  /// concurrently with compute, which has the cores.
  virtual void enter_stream_thread() {}

  /// Copies from host to device and back, after all work enqueued on stream 0 before. On return
  /// `host` may be reused or is full; an upload may still be in flight, but precedes later work of
  /// stream 0.
  virtual void upload(std::byte* device, const std::byte* host, int64_t bytes) = 0;
  virtual void clear(std::byte* device, int64_t bytes) = 0;  ///< to zeros
  virtual void download(std::byte* host, const std::byte* device, int64_t bytes) = 0;

  /// Copy concurrently with all streams, and have ended on return; any threads may call them at
  /// once. REQUIRES: no work in flight writes the device's bytes, or reads those that are written.
  virtual void read_beside(std::byte* host, const std::byte* device, int64_t bytes) {
    download(host, device, bytes);
  }

  virtual void write_beside(std::byte* device, const std::byte* host, int64_t bytes) {
    upload(device, host, bytes);
  }

  /// Allocates what `threads` threads need for that, so that their first copies are no slower.
  virtual void prepare_copies(int /*num_threads*/) {}

  /// Lets the device write to host memory by itself, so that read_beside() there takes no core; any
  /// thread may call it. Does nothing where it cannot. REQUIRES: unpin() before the memory goes.
  virtual void pin(std::byte* /*host*/, int64_t /*bytes*/) {}

  virtual void unpin(std::byte* /*host*/) {}

  /// Returns when all work enqueued on stream 0 has ended.
  virtual void settle() {}
};

/// Prepares the task's kernel. REQUIRES: the task is no communication.
Kernel prepare(Backend& backend, const Task& task);

}  // namespace tokamak
