# CUDA in C++20, and the libraries of the GPU backend.
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 90-real)
endif()
enable_language(CUDA)
if(CMAKE_VERSION VERSION_LESS 3.26) # 3.25 knows no CUDA20 for nvcc
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_STANDARD 20) # after enable_language
find_package(CUDAToolkit 12.8 REQUIRED)

# cuDNN and NCCL have no CMake files of their own.
set(places ${CUDAToolkit_INCLUDE_DIRS} ${CUDAToolkit_LIBRARY_DIR})
tokamak_find_library(tok_nccl nccl.h nccl ${places})
tokamak_find_library(tok_cudnn cudnn.h cudnn ${places})

# The headers of cudnn-frontend, which tools/setup.sh unpacks.
set(TOK_CUDNN_FRONTEND "${PROJECT_SOURCE_DIR}/build/cudnn-frontend/include" CACHE PATH
  "Where cudnn_frontend.h lies; without it attention is our own kernel's")
if(NOT EXISTS ${TOK_CUDNN_FRONTEND}/cudnn_frontend.h)
  message(WARNING "no cudnn_frontend.h in ${TOK_CUDNN_FRONTEND}: attention is our own kernel's, "
    "which makes long sequences many times slower; `tools/setup.sh cuda` unpacks it")
endif()
