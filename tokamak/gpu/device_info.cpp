#include "tokamak/gpu/device_info.h"

#include <array>

#include <fmt/format.h>

#include "tokamak/gpu/check.h"
#include "tokamak/gpu/nccl_world.h"

#ifndef TOK_HIP
#include <cublasLt.h>
#endif
#ifdef TOK_WITH_CUDNN
#include <cudnn.h>
#endif

namespace tokamak::gpu {

DeviceInfo describe_device(int device) {
  cudaDeviceProp properties{};
  TOK_CUDA(cudaGetDeviceProperties(&properties, device));
  std::array<char, 32> bus{};
  TOK_CUDA(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), device));
  return {.name = properties.name,
          .bus = bus.data(),
          .arch = properties.major * 10 + properties.minor,
          .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem),
          .num_multiprocessors = properties.multiProcessorCount};
}

int current_device() {
  int device = 0;
  TOK_CUDA(cudaGetDevice(&device));
  return device;
}

MemoryInUse memory_in_use() {
  size_t free = 0;
  size_t total = 0;
  TOK_CUDA(cudaMemGetInfo(&free, &total));
  return {.used_bytes = static_cast<int64_t>(total - free),
          .total_bytes = static_cast<int64_t>(total)};
}

std::vector<std::pair<std::string, std::string>> library_versions() {
  // Both runtimes count 1000 a major and 10 a minor version.
  const auto spell = [](int v) { return fmt::format("{}.{}", v / 1000, v % 1000 / 10); };
  int driver = 0;
  int runtime = 0;
  TOK_CUDA(cudaDriverGetVersion(&driver));
  TOK_CUDA(cudaRuntimeGetVersion(&runtime));
  std::vector<std::pair<std::string, std::string>> versions{
      {"driver", driver == 0 ? "none" : "for CUDA " + spell(driver)},
      {"runtime", "CUDA " + spell(runtime)}};
#ifndef TOK_HIP
  const auto dotted = [](size_t v) {
    return fmt::format("{}.{}.{}", v / 10000, v % 10000 / 100, v % 100);
  };
  versions.emplace_back("cuBLASLt", dotted(cublasLtGetVersion()));
#endif
#ifdef TOK_WITH_CUDNN
  versions.emplace_back("cuDNN", dotted(cudnnGetVersion()));
#else
  versions.emplace_back("cuDNN", "not built in");
#endif
  const std::string nccl = nccl_version();
  versions.emplace_back("NCCL", nccl.empty() ? "not built in" : nccl);
  return versions;
}

}  // namespace tokamak::gpu
