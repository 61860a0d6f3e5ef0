#include "tokamak/gpu/loaded/gpu_functions.h"

extern "C" const tokamak::gpu::GpuFunctions* tokamak_gpu_functions() {
  namespace gpu = tokamak::gpu;
  static constexpr gpu::GpuFunctions kFunctions{
      .num_devices = gpu::num_devices,
      .why_none = gpu::why_none,
      .make_backend = gpu::make_backend,
      .describe_device = gpu::describe_device,
      .current_device = gpu::current_device,
      .memory_in_use = gpu::memory_in_use,
      .library_versions = gpu::library_versions,
      .has_copy_engine_gathers = gpu::has_copy_engine_gathers,
      .make_nccl_world = gpu::make_nccl_world,
  };
  return &kFunctions;
}
