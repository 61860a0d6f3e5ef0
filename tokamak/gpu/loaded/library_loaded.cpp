// The libraries loaded when the GPU part of a portable build first asks for them. Each function
// that it calls is a jump to an address, which is a function that fails until its library is
// loaded; so callers include the libraries' own headers and know nothing of this.
#include <array>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <system_error>
#include <vector>

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "tokamak/core/error.h"
#include "tokamak/core/own_library.h"
#include "tokamak/gpu/loaded/library.h"
#include "tokamak/gpu/loaded/library_functions.h"

#ifndef __x86_64__
#error "portable builds with GPU support are for x86-64"
#endif

namespace {

[[noreturn]] void not_loaded() {
  TOK_CHECK(false, "a function of a CUDA library was called before why_missing() loaded it");
}

}  // namespace

#define TOK_JUMP(name)                                                                   \
  extern "C" [[gnu::visibility("hidden")]] void* tokamak_address_of_##name;              \
  void* tokamak_address_of_##name = reinterpret_cast<void*>(&not_loaded);                \
  asm(".pushsection .text\n.globl " #name "\n.hidden " #name "\n.type " #name            \
      ", @function\n" #name ":\n  jmp *tokamak_address_of_" #name "(%rip)\n.size " #name \
      ", .-" #name "\n.popsection\n");
TOK_CUBLASLT_FUNCTIONS(TOK_JUMP)
TOK_NVRTC_FUNCTIONS(TOK_JUMP)
TOK_CUDNN_FUNCTIONS(TOK_JUMP)
TOK_NCCL_FUNCTIONS(TOK_JUMP)

namespace tokamak::gpu {
namespace {

namespace fs = std::filesystem;

struct Function {
  const char* name;
  void** address;
};

struct LibraryFile {
  std::string name;     // "libnccl.so.2"
  std::string package;  // of NVIDIA's repositories for Debian, Ubuntu
  std::string wheel;    // of PyPI
  std::span<const Function> functions;
};

#define TOK_FUNCTION(name) Function{#name, &tokamak_address_of_##name},
constexpr std::array kCublasLtFunctions{TOK_CUBLASLT_FUNCTIONS(TOK_FUNCTION)};
constexpr std::array kNvrtcFunctions{TOK_NVRTC_FUNCTIONS(TOK_FUNCTION)};
constexpr std::array kCudnnFunctions{TOK_CUDNN_FUNCTIONS(TOK_FUNCTION)};
constexpr std::array kNcclFunctions{TOK_NCCL_FUNCTIONS(TOK_FUNCTION)};

constexpr int kMajor = CUDART_VERSION / 1000;
constexpr int kMinor = CUDART_VERSION % 1000 / 10;

std::vector<LibraryFile> files_of(CudaLibrary library) {
  // From CUDA 13 on its wheels are named without the version.
  const std::string of_wheel = kMajor >= 13 ? "" : fmt::format("-cu{}", kMajor);
  switch (library) {
    case CudaLibrary::kCublasLt:
      return {{.name = fmt::format("libcublasLt.so.{}", kMajor),
               .package = fmt::format("libcublas-{}-{}", kMajor, kMinor),
               .wheel = "nvidia-cublas" + of_wheel,
               .functions = kCublasLtFunctions}};
    case CudaLibrary::kCudnn:
      return {{.name = fmt::format("libnvrtc.so.{}", kMajor),
               .package = fmt::format("cuda-nvrtc-{}-{}", kMajor, kMinor),
               .wheel = "nvidia-cuda-nvrtc" + of_wheel,
               .functions = kNvrtcFunctions},
              {.name = "libcudnn.so.9",
               .package = fmt::format("libcudnn9-cuda-{}", kMajor),
               .wheel = fmt::format("nvidia-cudnn-cu{}", kMajor),
               .functions = kCudnnFunctions}};
    case CudaLibrary::kNccl:
      return {{.name = "libnccl.so.2",
               .package = "libnccl2",
               .wheel = fmt::format("nvidia-nccl-cu{}", kMajor),
               .functions = kNcclFunctions}};
  }
  TOK_CHECK(false, "library {}", static_cast<int>(library));
}

// Wheels lie in PREFIX/lib/pythonX.Y/site-packages/nvidia/NAME/lib, and so does a tokamak that pip
// installed in PREFIX.
void add_wheels(const fs::path& prefix, std::vector<fs::path>& folders) {
  std::error_code none;
  for (const auto& python : fs::directory_iterator(prefix / "lib", none)) {
    if (!python.path().filename().string().starts_with("python3")) continue;
    for (const auto& part : fs::directory_iterator(python.path() / "site-packages/nvidia", none))
      folders.push_back(part.path() / "lib");
  }
}

// Where libraries may lie beyond what the loader searches.
std::vector<fs::path> folders() {
  std::vector<fs::path> all;
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
    const char* value = std::getenv(name);
    if (value != nullptr && *value != '\0') all.push_back(fs::path(value) / "lib64");
  }
  // lib/tokamak is below the prefix, and so is bin.
  const fs::path own = find_own_library("libtokamak_gpu.so");
  add_wheels(own.parent_path().parent_path().parent_path(), all);
  all.emplace_back(fmt::format("/usr/local/cuda-{}/lib64", kMajor));
  all.emplace_back("/usr/local/cuda/lib64");
  return all;
}

void* open(const std::string& name, std::string& problem) {
  // Global, so that libraries which ask for each other find what is loaded already.
  constexpr int kFlags = RTLD_LAZY | RTLD_GLOBAL;
  void* library = dlopen(name.c_str(), kFlags);
  if (library != nullptr) return library;
  problem = dlerror();
  for (const fs::path& folder : folders()) {
    std::error_code none;
    const fs::path path = folder / name;
    if (!fs::exists(path, none)) continue;
    library = dlopen(path.c_str(), kFlags);
    if (library != nullptr) return library;
    problem = dlerror();
  }
  return nullptr;
}

std::string load(const LibraryFile& file) {
  std::string problem;
  void* library = open(file.name, problem);
  const auto cure =
      fmt::format("install NVIDIA's package {} (or `pip install {}`)", file.package, file.wheel);
  if (library == nullptr) return fmt::format("{}; {}", problem, cure);
  for (const Function& function : file.functions) {
    void* address = dlsym(library, function.name);
    if (address == nullptr)
      return fmt::format("{} is older than this program wants: it has no {}; {}", file.name,
                         function.name, cure);
    *function.address = address;
  }
  return "";
}

std::string load(CudaLibrary library) {
  for (const LibraryFile& file : files_of(library)) {
    std::string problem = load(file);
    if (!problem.empty()) return problem;
  }
  return "";
}

template <CudaLibrary kLibrary>
const std::string& load_once() {
  static const std::string problem = load(kLibrary);
  return problem;
}

}  // namespace

const std::string& why_missing(CudaLibrary library) {
  switch (library) {
    case CudaLibrary::kCublasLt:
      return load_once<CudaLibrary::kCublasLt>();
    case CudaLibrary::kCudnn:
      return load_once<CudaLibrary::kCudnn>();
    case CudaLibrary::kNccl:
      return load_once<CudaLibrary::kNccl>();
  }
  TOK_CHECK(false, "library {}", static_cast<int>(library));
}

}  // namespace tokamak::gpu
