// CUDA's libraries: a program for this machine is linked with them, a portable one loads them.
#pragma once

#include <string>

namespace tokamak::gpu {

enum class CudaLibrary { kCublasLt, kCudnn, kNccl };

/// Returns "" if the functions of the library can be called, or one line that says what is missing
/// and what to install. A portable build loads the library here; its functions must not be called
/// before.
const std::string& why_missing(CudaLibrary library);

inline bool is_here(CudaLibrary library) {
  return why_missing(library).empty();
}

}  // namespace tokamak::gpu
