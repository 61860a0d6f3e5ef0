// Facts about this host's GPUs that are known before one is used.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tokamak::gpu {

struct DeviceInfo {
  std::string name;  ///< "NVIDIA H200"
  std::string bus;   ///< its place in the host, "0000:1b:00.0"
  std::string arch;  ///< "sm_90", "gfx90a"
  int64_t memory_bytes = 0;
  int num_multiprocessors = 0;
};

/// REQUIRES: 0 <= device < num_devices().
DeviceInfo describe_device(int device);

/// Returns the calling thread's device, set by the last backend that the thread made.
int current_device();

struct MemoryInUse {
  int64_t used_bytes = 0;  ///< by all processes, the driver and libraries
  int64_t total_bytes = 0;
};

/// Returns the driver's figures for the calling thread's device.
MemoryInUse memory_in_use();

/// Returns "12.8.4" for 120804, a version as cuBLASLt, cuDNN and NCCL encode it.
std::string dotted_version(size_t version);

/// Returns {"driver", "13.0"}, ...: the driver and the libraries that this program was built with.
std::vector<std::pair<std::string, std::string>> library_versions();

}  // namespace tokamak::gpu
