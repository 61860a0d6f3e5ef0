// Streams and events of a device that runs work asynchronously.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "tokamak/exec/kernel.h"

namespace tokamak {

using DeviceEvent = void*;  // cudaEvent_t

/// Work of one stream, recorded once and launched as a whole.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;

  virtual void launch(DeviceStream stream) = 0;
};

/// Work on one stream runs in order; between streams only events order it. All calls except
/// `synchronize` return at once. Each throws SystemError if the device reports an error, which may
/// come from earlier work.
class DeviceStreams {
 public:
  virtual ~DeviceStreams() = default;

  /// Returns stream `n` of this device, made at first use; stream 0 computes, and the others have
  /// priority over it.
  virtual DeviceStream stream(size_t n) = 0;

  /// Returns an event that lives as long as the device.
  virtual DeviceEvent make_event(bool is_timed) = 0;

  virtual void record(DeviceEvent event, DeviceStream stream) = 0;

  /// Makes later work of `stream` begin after `event`.
  virtual void wait(DeviceStream stream, DeviceEvent event) = 0;

  virtual bool has_happened(DeviceEvent event) = 0;

  /// Records what `work` enqueues on `stream` without running it; may wait for the device, so that
  /// launching the graph does not. REQUIRES: `work` uses no other stream and no event, and its host
  /// code and memory would do the same at each later launch.
  virtual std::unique_ptr<DeviceGraph> capture(DeviceStream stream,
                                               const std::function<void()>& work) = 0;

  /// Blocks the host until `event` has happened.
  virtual void synchronize(DeviceEvent event) = 0;

  /// Host memory that the device copies into by itself; lives as long as the device.
  virtual void* make_pinned(size_t bytes) = 0;

  /// Copies in order with stream 0.
  virtual void copy_to_pinned(void* pinned, const std::byte* device, size_t bytes) = 0;

  /// REQUIRES: both are timed and have happened.
  virtual double seconds_between(DeviceEvent begin, DeviceEvent end) = 0;
};

}  // namespace tokamak
