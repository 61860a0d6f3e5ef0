// The functions that this folder calls of each library. tools/check_symbols.py finds those that are
// forgotten when a portable build is linked.
#pragma once

#define TOK_CUBLASLT_FUNCTIONS(X)          \
  X(cublasLtCreate)                        \
  X(cublasLtDestroy)                       \
  X(cublasLtGetStatusString)               \
  X(cublasLtGetVersion)                    \
  X(cublasLtMatmul)                        \
  X(cublasLtMatmulAlgoCheck)               \
  X(cublasLtMatmulAlgoGetHeuristic)        \
  X(cublasLtMatmulDescInit_internal)       \
  X(cublasLtMatmulDescSetAttribute)        \
  X(cublasLtMatmulPreferenceInit_internal) \
  X(cublasLtMatmulPreferenceSetAttribute)  \
  X(cublasLtMatrixLayoutInit_internal)

#define TOK_NVRTC_FUNCTIONS(X) \
  X(nvrtcCompileProgram)       \
  X(nvrtcCreateProgram)        \
  X(nvrtcDestroyProgram)       \
  X(nvrtcGetCUBIN)             \
  X(nvrtcGetCUBINSize)         \
  X(nvrtcGetProgramLog)        \
  X(nvrtcGetProgramLogSize)

#define TOK_CUDNN_FUNCTIONS(X)     \
  X(cudnnBackendCreateDescriptor)  \
  X(cudnnBackendDestroyDescriptor) \
  X(cudnnBackendExecute)           \
  X(cudnnBackendFinalize)          \
  X(cudnnBackendGetAttribute)      \
  X(cudnnBackendSetAttribute)      \
  X(cudnnCreate)                   \
  X(cudnnDestroy)                  \
  X(cudnnGetErrorString)           \
  X(cudnnGetLastErrorString)       \
  X(cudnnGetStream)                \
  X(cudnnGetVersion)               \
  X(cudnnSetStream)

#define TOK_NCCL_FUNCTIONS(X) \
  X(ncclAllGather)            \
  X(ncclAllReduce)            \
  X(ncclAlltoAll)             \
  X(ncclBroadcast)            \
  X(ncclCommAbort)            \
  X(ncclCommDestroy)          \
  X(ncclCommGetAsyncError)    \
  X(ncclCommInitRankConfig)   \
  X(ncclCommWindowRegister)   \
  X(ncclGetErrorString)       \
  X(ncclGetLastError)         \
  X(ncclGetUniqueId)          \
  X(ncclGetVersion)           \
  X(ncclGroupEnd)             \
  X(ncclGroupStart)           \
  X(ncclMemAlloc)             \
  X(ncclMemFree)              \
  X(ncclRecv)                 \
  X(ncclReduceScatter)        \
  X(ncclSend)
