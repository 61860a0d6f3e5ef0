// The GPU part loaded when the program first asks for GPUs: the program itself needs none of CUDA.
#include <string>

#include <dlfcn.h>

#include "tokamak/core/error.h"
#include "tokamak/core/own_library.h"
#include "tokamak/gpu/loaded/gpu_functions.h"

namespace tokamak::gpu {
namespace {

constexpr const char* kLibrary = "libtokamak_gpu.so";

struct Part {
  const GpuFunctions* functions = nullptr;
  std::string problem;  // why there are none
};

Part load() {
  // Without a driver there is nothing to load for.
  if (dlopen("libcuda.so.1", RTLD_LAZY) == nullptr)
    return {.problem = fmt::format("this machine has no NVIDIA driver ({})", dlerror())};
  const std::filesystem::path path = find_own_library(kLibrary);
  if (path.empty())
    return {.problem = fmt::format("cannot find {} next to the executable or in PREFIX/lib/tokamak",
                                   kLibrary)};
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return {.problem = fmt::format("the GPU part cannot be loaded: {}", dlerror())};
  void* symbol = dlsym(library, "tokamak_gpu_functions");
  if (symbol == nullptr) return {.problem = path.string() + " is not of this build"};
  return {.functions = reinterpret_cast<const GpuFunctions* (*)()>(symbol)()};
}

const Part& part() {
  static const Part loaded = load();
  return loaded;
}

const GpuFunctions& functions() {
  TOK_REQUIRE(part().functions != nullptr, "no GPU: {}", part().problem);
  return *part().functions;
}

}  // namespace

int num_devices() {
  return part().functions == nullptr ? 0 : functions().num_devices();
}

std::string why_none() {
  return part().functions == nullptr ? part().problem : functions().why_none();
}

std::unique_ptr<Backend> make_backend(const Options& options) {
  return functions().make_backend(options);
}

DeviceInfo describe_device(int device) {
  return functions().describe_device(device);
}

int current_device() {
  return functions().current_device();
}

MemoryInUse memory_in_use() {
  return functions().memory_in_use();
}

std::vector<std::pair<std::string, std::string>> library_versions() {
  if (part().functions == nullptr) return {};
  return functions().library_versions();
}

bool has_copy_engine_gathers() {
  return part().functions != nullptr && functions().has_copy_engine_gathers();
}

std::unique_ptr<World> make_nccl_world(World& control, Backend& gpu, const NcclOptions& options) {
  return functions().make_nccl_world(control, gpu, options);
}

}  // namespace tokamak::gpu
