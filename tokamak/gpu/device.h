// One GPU: its properties, streams, staging memory and library handles.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tokamak/exec/device_streams.h"
#include "tokamak/gpu/vendor.h"

namespace tokamak::gpu {

/// Returns the CUDA stream that a kernel of this backend finds in KernelArgs::stream.
inline cudaStream_t as_stream(DeviceStream stream) {
  return static_cast<cudaStream_t>(stream);
}

class Device final : public DeviceStreams {
 public:
  explicit Device(int index);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device() override;

  int index() const { return index_; }

  /// Returns 90 for sm_90.
  int arch() const { return arch_; }

  int num_multiprocessors() const { return num_multiprocessors_; }

  int64_t l2_bytes() const { return l2_bytes_; }

  const std::string& name() const { return name_; }

  DeviceStream stream(size_t n) override;
  DeviceEvent make_event(bool is_timed) override;
  void record(DeviceEvent event, DeviceStream stream) override;
  void wait(DeviceStream stream, DeviceEvent event) override;
  bool has_happened(DeviceEvent event) override;
  std::unique_ptr<DeviceGraph> capture(DeviceStream stream,
                                       const std::function<void()>& work) override;
  void synchronize(DeviceEvent event) override;
  void* make_pinned(size_t bytes) override;
  void copy_to_pinned(void* pinned, const std::byte* device, size_t bytes) override;
  double seconds_between(DeviceEvent begin, DeviceEvent end) override;

  /// The state that matmul and attention libraries keep for this device; empty until first used.
  std::shared_ptr<void>& gemm_library() { return gemm_library_; }

  std::shared_ptr<void>& attention_library() { return attention_library_; }

  /// Uploads in order with stream 0; `host` may be reused on return.
  void upload(std::byte* device, const std::byte* host, int64_t bytes);

  /// Zeroes, in order with stream 0.
  void clear(std::byte* device, int64_t bytes);

  /// Downloads after all work enqueued on stream 0; complete on return.
  void download(std::byte* host, const std::byte* device, int64_t bytes);

 private:
  // A part of the pinned staging memory, and when the copy out of it has ended.
  struct Stage {
    std::byte* data = nullptr;
    cudaEvent_t done = nullptr;
  };

  Stage& next_stage();

  int index_;
  int arch_ = 0;
  int num_multiprocessors_ = 0;
  int64_t l2_bytes_ = 0;
  std::string name_;
  std::vector<cudaStream_t> streams_;
  std::deque<cudaEvent_t> events_;
  std::vector<void*> pinned_;
  std::array<Stage, 32> stages_;
  size_t next_stage_ = 0;
  std::shared_ptr<void> gemm_library_;
  std::shared_ptr<void> attention_library_;
};

}  // namespace tokamak::gpu
