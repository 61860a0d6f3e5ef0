#include <algorithm>
#include <array>

#include "tokamak/gpu/check.h"
#include "tokamak/ops/float8/hopper_kernel_gpu.cuh"
#include "tokamak/ops/float8/hopper_matmul_gpu.h"

namespace tokamak::gpu {
namespace {

using namespace hopper;  // NOLINT(google-build-using-namespace)

static_assert(kPart == kScaleBlock);

template <bool kIsE5M2>
const void* kernel_to(DType out) {
  return out == DType::kBF16
             ? reinterpret_cast<const void*>(multiply_quantized<kIsE5M2, __nv_bfloat16>)
             : reinterpret_cast<const void*>(multiply_quantized<kIsE5M2, float>);
}

int64_t num_tiles(const GemmShape& s) {
  constexpr int64_t kWide = kCluster * kTileN;
  return (s.m + kTileM - 1) / kTileM * ((s.n + kWide - 1) / kWide);
}

// The driver is reached through the runtime: the program must start without a driver.
auto map_encoder() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  TOK_CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                            cudaEnableDefault, &result));
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
}

// The map of a matrix [rows, width], read in boxes; what lies outside reads as zeros.
CUtensorMap map_of(DType dtype, const void* data, int64_t rows, int64_t width, uint32_t box_rows,
                   uint32_t box_width) {
  static const auto kEncode = map_encoder();
  const bool is_quantized = is_scaled(dtype);
  const std::array<cuuint64_t, 2> dims{static_cast<cuuint64_t>(width),
                                       static_cast<cuuint64_t>(rows)};
  const cuuint64_t stride = dims[0] * static_cast<cuuint64_t>(size_of(dtype));
  const std::array<cuuint32_t, 2> box{box_width, box_rows};
  const std::array<cuuint32_t, 2> each{1, 1};
  CUtensorMap map{};
  const CUresult status =
      kEncode(&map, is_quantized ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
              2, const_cast<void*>(data), dims.data(), &stride, box.data(), each.data(),
              CU_TENSOR_MAP_INTERLEAVE_NONE,
              is_quantized ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
              CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) fail_call("cuTensorMapEncodeTiled", "the driver refuses the operand");
  return map;
}

ScaledOperands product_of(const GemmShape& s, const GemmOperands& operands) {
  const int64_t parts = (s.k + kPart - 1) / kPart;
  return {.a = map_of(s.in, operands.a, s.m, s.k, kHalfM, kPart),
          .b = map_of(s.in_b(), operands.b, s.n, s.k, kTileN, kPart),
          .a_inverse = map_of(DType::kF32, operands.a_scales, parts, s.m, 1, kHalfM),
          .b_inverse = static_cast<const float*>(operands.b_scales),
          .b_step = scale_index(ScaleGrid::kBlocks, s.n, s.k, kScaleBlock, 0),
          .c = operands.c,
          .M = static_cast<int>(s.m),
          .N = static_cast<int>(s.n),
          .parts = static_cast<int>(parts),
          .accumulate = operands.accumulate};
}

}  // namespace

HopperMatmul::HopperMatmul(const GemmShape& shape, const Device& device)
    : shape_(shape),
      kernel_(shape.in == DType::kE5M2 ? kernel_to<true>(shape.out) : kernel_to<false>(shape.out)),
      blocks_(kCluster * static_cast<int>(std::min<int64_t>(
                             num_tiles(shape), device.num_multiprocessors() / kCluster))) {
  TOK_CUDA(cudaFuncSetAttribute(kernel_, cudaFuncAttributeMaxDynamicSharedMemorySize, kBlockBytes));
}

void HopperMatmul::run(const GemmOperands& operands, DeviceStream stream) const {
  ScaledOperands product = product_of(shape_, operands);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {.x = kCluster, .y = 1, .z = 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks_));
  config.blockDim = dim3(kBlockThreads);
  config.dynamicSmemBytes = kBlockBytes;
  config.stream = as_stream(stream);
  config.attrs = &cluster;
  config.numAttrs = 1;
  void* arguments[] = {&product};
  TOK_CUDA(cudaLaunchKernelExC(&config, kernel_, arguments));
}

}  // namespace tokamak::gpu
