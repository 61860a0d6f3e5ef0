#include "tokamak/gpu/device_info.h"

#include <array>

#include <fmt/format.h>

#include "tokamak/gpu/attention/cudnn_attention.h"
#include "tokamak/gpu/check.h"
#include "tokamak/gpu/gemm/gemm.h"
#include "tokamak/gpu/nccl/nccl_world.h"

namespace tokamak::gpu {

DeviceInfo describe_device(int device) {
  cudaDeviceProp properties{};
  TOK_CUDA(cudaGetDeviceProperties(&properties, device));
  std::array<char, 32> bus{};
  TOK_CUDA(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), device));
  return {.name = properties.name,
          .bus = bus.data(),
          .arch = arch_name(properties),
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

std::string dotted_version(size_t v) {
  return fmt::format("{}.{}.{}", v / 10000, v % 10000 / 100, v % 100);
}

std::vector<std::pair<std::string, std::string>> library_versions() {
  const auto spell = [](int v) {
    return fmt::format("{} {}.{}", kRuntimeName, v / kMajorVersion,
                       v % kMajorVersion / kMinorVersion);
  };
  int driver = 0;
  int runtime = 0;
  TOK_CUDA(cudaDriverGetVersion(&driver));
  TOK_CUDA(cudaRuntimeGetVersion(&runtime));
  std::vector<std::pair<std::string, std::string>> versions{
      {"driver", driver == 0 ? "none" : "for " + spell(driver)}, {"runtime", spell(runtime)}};
  const auto add = [&](const char* library, const std::string& version) {
    versions.emplace_back(library, version.empty() ? "not built in" : version);
  };
  add(kIsHip ? "hipBLASLt" : "cuBLASLt", gemm_library_version());
  if (!kIsHip) add("cuDNN", cudnn_version());
  add(kIsHip ? "RCCL" : "NCCL", nccl_version());
  return versions;
}

}  // namespace tokamak::gpu
