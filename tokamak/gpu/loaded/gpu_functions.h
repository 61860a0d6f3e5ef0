// The door between the program and its GPU part, which a portable build keeps in a library of its
// own: only a program that sees an NVIDIA driver loads it.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tokamak/gpu/backend.h"
#include "tokamak/gpu/device_info.h"
#include "tokamak/gpu/nccl/nccl_world.h"

namespace tokamak::gpu {

/// The functions of the headers above that the program calls.
struct GpuFunctions {
  int (*num_devices)();
  std::string (*why_none)();
  std::unique_ptr<Backend> (*make_backend)(const Options&);
  DeviceInfo (*describe_device)(int device);
  int (*current_device)();
  MemoryInUse (*memory_in_use)();
  std::vector<std::pair<std::string, std::string>> (*library_versions)();
  bool (*has_copy_engine_gathers)();
  std::unique_ptr<World> (*make_nccl_world)(World& control, Backend& gpu, const NcclOptions&);
};

}  // namespace tokamak::gpu

/// Returns the functions of this GPU part; dlsym() finds it by this name.
extern "C" const tokamak::gpu::GpuFunctions* tokamak_gpu_functions();
