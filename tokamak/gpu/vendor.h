// The names of one GPU vendor's runtime, for the rest of this folder and for ops/*_gpu.cu: CUDA's
// as they are, HIP's under the same spelling.
#pragma once

#include <string>
#include <string_view>

#ifdef TOK_HIP
#include <hip/hip_bfloat16.h>
#include <hip/hip_runtime.h>

#define cudaDeviceGetAttribute hipDeviceGetAttribute
#define cudaDeviceGetPCIBusId hipDeviceGetPCIBusId
#define cudaDeviceGetStreamPriorityRange hipDeviceGetStreamPriorityRange
#define cudaDevAttrL2CacheSize hipDeviceAttributeL2CacheSize
#define cudaDevAttrMultiProcessorCount hipDeviceAttributeMultiprocessorCount
#define cudaDeviceProp hipDeviceProp_t
#define cudaDriverGetVersion hipDriverGetVersion
#define cudaError_t hipError_t
#define cudaErrorInsufficientDriver hipErrorInsufficientDriver
#define cudaErrorMemoryAllocation hipErrorOutOfMemory
#define cudaErrorNoDevice hipErrorNoDevice
#define cudaErrorNotReady hipErrorNotReady
#define cudaEventCreateWithFlags hipEventCreateWithFlags
#define cudaEventDestroy hipEventDestroy
#define cudaEventDisableTiming hipEventDisableTiming
#define cudaEventDefault hipEventDefault
#define cudaEventElapsedTime hipEventElapsedTime
#define cudaEventQuery hipEventQuery
#define cudaEventRecord hipEventRecord
#define cudaEventSynchronize hipEventSynchronize
#define cudaEvent_t hipEvent_t
#define cudaFree hipFree
#define cudaFreeHost hipHostFree
#define cudaHostRegister hipHostRegister
#define cudaHostRegisterDefault hipHostRegisterDefault
#define cudaHostUnregister hipHostUnregister
#define cudaFuncAttributeMaxDynamicSharedMemorySize hipFuncAttributeMaxDynamicSharedMemorySize
#define cudaFuncSetAttribute hipFuncSetAttribute
#define cudaGetDevice hipGetDevice
#define cudaGetDeviceCount hipGetDeviceCount
#define cudaGetDeviceProperties hipGetDeviceProperties
#define cudaGetErrorString hipGetErrorString
#define cudaGetLastError hipGetLastError
#define cudaGraphDestroy hipGraphDestroy
#define cudaGraphExecDestroy hipGraphExecDestroy
#define cudaGraphExec_t hipGraphExec_t
#define cudaGraphInstantiateWithFlags hipGraphInstantiateWithFlags
#define cudaGraphLaunch hipGraphLaunch
#define cudaGraph_t hipGraph_t
#define cudaMalloc hipMalloc
#define cudaMallocHost hipHostMalloc
#define cudaMemGetInfo hipMemGetInfo
#define cudaMemcpyAsync hipMemcpyAsync
#define cudaMemcpyDefault hipMemcpyDefault
#define cudaMemcpyDeviceToDevice hipMemcpyDeviceToDevice
#define cudaMemcpyDeviceToHost hipMemcpyDeviceToHost
#define cudaMemcpyHostToDevice hipMemcpyHostToDevice
#define cudaMemsetAsync hipMemsetAsync
#define cudaRuntimeGetVersion hipRuntimeGetVersion
#define cudaSetDevice hipSetDevice
#define cudaStreamBeginCapture hipStreamBeginCapture
#define cudaStreamCaptureModeRelaxed hipStreamCaptureModeRelaxed
#define cudaStreamCreateWithPriority hipStreamCreateWithPriority
#define cudaStreamCreateWithFlags hipStreamCreateWithFlags
#define cudaStreamDestroy hipStreamDestroy
#define cudaStreamEndCapture hipStreamEndCapture
#define cudaMemset hipMemset
#define cudaDeviceSynchronize hipDeviceSynchronize
#define cudaStreamNonBlocking hipStreamNonBlocking
#define cudaStreamSynchronize hipStreamSynchronize
#define cudaStreamWaitEvent hipStreamWaitEvent
#define cudaStream_t hipStream_t
#define cudaSuccess hipSuccess
#define __grid_constant__
#define __nv_bfloat16 hip_bfloat16
#define __trap __builtin_trap

// HIP 5.2 has no such call, so that a graph's first launch may wait for the device.
inline hipError_t cudaGraphUpload(hipGraphExec_t, hipStream_t) {
  return hipSuccess;
}

// A warp is 32 lanes here too: half a wavefront of 64, and no shuffle crosses its bounds.
#define __shfl_sync(mask, x, lane) __shfl(x, lane, 32)
#define __shfl_up_sync(mask, x, d) __shfl_up(x, d, 32)
#define __shfl_xor_sync(mask, x, d) __shfl_xor(x, d, 32)
#else
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#endif

namespace tokamak::gpu {

#ifdef TOK_HIP

inline constexpr bool kIsHip = true;
inline constexpr const char* kRuntimeName = "HIP";
inline constexpr int kMajorVersion = 10'000'000;
inline constexpr int kMinorVersion = 100'000;
inline constexpr int kSharedBytes = 64 << 10;

/// Returns "gfx90a" for "gfx90a:sramecc+:xnack-".
inline std::string arch_name(const cudaDeviceProp& device) {
  const std::string_view all = device.gcnArchName;
  return std::string(all.substr(0, all.find(':')));
}

#else

inline constexpr bool kIsHip = false;
inline constexpr const char* kRuntimeName = "CUDA";

/// The factors of a runtime's version number for its major and its minor version.
inline constexpr int kMajorVersion = 1000;
inline constexpr int kMinorVersion = 10;

/// Shared memory that a block may have at most, on Hopper.
inline constexpr int kSharedBytes = 227 << 10;

/// Returns "sm_90" or the like.
inline std::string arch_name(const cudaDeviceProp& device) {
  return "sm_" + std::to_string(device.major * 10 + device.minor);
}

#endif

}  // namespace tokamak::gpu
