#include "tokamak/gpu/dispatch.cuh"
#include "tokamak/gpu/gemm/gemm.h"
#include "tokamak/gpu/product_tile.cuh"
#include "tokamak/ops/float8/float8_gpu.cuh"
#include "tokamak/ops/float8/hopper_matmul_gpu.h"
#include "tokamak/ops/float8/mx.h"
#include "tokamak/ops/float8/scaled_matmul.h"
#include "tokamak/ops/matmul/linear.h"

namespace tokamak::gpu {
namespace {

static_assert(kScaleBlock % kProductDepth == 0 && kMxBlock % kProductDepth == 0);

// Quantized values of R rows, and the place of the inverse scale of row r in part k / 128, or k /
// 32 with kMx.
struct Operand {
  const uint8_t* values;
  const float* inverse = nullptr;
  int64_t R;
  int64_t per_row = 0, per_block_row = 0, per_part = 0;
  const uint8_t* exponents = nullptr;  // null but with kMx
  int64_t K = 0;

  __device__ float scale_at(int64_t r, int64_t part) const {
    if (exponents != nullptr) {
      const int64_t at = scale_index(ScaleGrid::kMx, R, K, r, part * kMxBlock);
      return static_cast<float>(E8M0{exponents[at]});
    }
    return inverse[r * per_row + r / kScaleBlock * per_block_row + part * per_part];
  }
};

Operand operand_of(ScaleGrid grid, int64_t R, int64_t K, const Tensor& quantized,
                   const Tensor& inverse) {
  if (grid == ScaleGrid::kMx) {
    return {.values = quantized.as<uint8_t>(), .R = R, .exponents = inverse.as<uint8_t>(), .K = K};
  }
  const int64_t per_row = scale_index(grid, R, K, 1, 0);
  return {.values = quantized.as<uint8_t>(),
          .inverse = inverse.as<float>(),
          .R = R,
          .per_row = per_row,
          .per_block_row = scale_index(grid, R, K, kScaleBlock, 0) - kScaleBlock * per_row,
          .per_part = scale_index(grid, R, K, 0, kScaleBlock)};
}

template <class Out>
struct Product {
  Operand a, b;
  int64_t K;
  int64_t part;  // length along k with one scale in each row of A and B
  const Out* bias;
  Out* c;
  bool accumulate;
};

// tile[k][r] = the code at (r0 + r, k0 + k), 0 outside.
template <class Format>
__device__ void load_tile(ProductTile<float>& tile, const Operand& from, int64_t K, int64_t r0,
                          int64_t k0) {
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < kProductTile * kProductDepth; i += kThreads) {
    const int k = i % kProductDepth;
    const int r = i / kProductDepth;
    const bool is_inside = r0 + r < from.R && k0 + k < K;
    tile[k][r] = is_inside ? decode_float8<Format>(from.values[(r0 + r) * K + k0 + k]) : 0.0F;
  }
}

// total += sum scaled, and sum = 0.
__device__ void add_part(const Operand& a, const Operand& b, int64_t m0, int64_t n0, int64_t part,
                         float (&sum)[kProductEach][kProductEach],
                         float (&total)[kProductEach][kProductEach]) {
#pragma unroll
  for (int i = 0; i < kProductEach; ++i) {
    const float x = m0 + i < a.R ? a.scale_at(m0 + i, part) : 0.0F;
#pragma unroll
    for (int j = 0; j < kProductEach; ++j) {
      const float y = n0 + j < b.R ? b.scale_at(n0 + j, part) : 0.0F;
      total[i][j] += sum[i][j] * x * y;
      sum[i][j] = 0.0F;
    }
  }
}

// C[m, n] (+)= sum_k A[m, k] B[n, k] (+ bias[n]).
template <class FormatA, class FormatB, class Out>
__global__ void __launch_bounds__(kThreads) multiply(Product<Out> p) {
  __shared__ __align__(16) ProductTile<float> tile_a;
  __shared__ __align__(16) ProductTile<float> tile_b;
  const int64_t m0 = static_cast<int64_t>(blockIdx.x) * kProductTile;
  const int64_t n0 = static_cast<int64_t>(blockIdx.y) * kProductTile;
  float sum[kProductEach][kProductEach] = {};
  float total[kProductEach][kProductEach] = {};
  for (int64_t k0 = 0; k0 < p.K; k0 += kProductDepth) {
    load_tile<FormatA>(tile_a, p.a, p.K, m0, k0);
    load_tile<FormatB>(tile_b, p.b, p.K, n0, k0);
    __syncthreads();
    multiply_tiles<float>(tile_a, tile_b, sum);
    __syncthreads();
    const int64_t end = min(k0 + kProductDepth, p.K);
    if (end % p.part == 0 || end == p.K)
      add_part(p.a, p.b, m0 + own_product_row(), n0 + own_product_column(), k0 / p.part, sum,
               total);
  }
  store_product(total, m0, n0, p.a.R, p.b.R, p.bias, p.c, p.accumulate);
}

template <class Out>
using Multiply = void (*)(Product<Out>);

template <class Out>
Multiply<Out> multiply_of(DType a, DType b) {
  return by_float8(a, [&]<class A>() -> Multiply<Out> {
    return by_float8(b, []<class B>() -> Multiply<Out> { return multiply<A, B, Out>; });
  });
}

bool is_by_part(ScaleGrid grid) {
  return grid == ScaleGrid::kSegments || grid == ScaleGrid::kBlocks;
}

template <class Out>
Kernel portable_product(const ScaledMatmul& op, const KernelTypes& types) {
  const int64_t M = rows_of(types.in[0]);
  const int64_t N = types.in[2].dims[0];
  const int64_t K = types.in[2].dims[1];
  const Multiply<Out> kernel = multiply_of<Out>(types.in[0].dtype, types.in[2].dtype);
  const int64_t part = op.a_grid == ScaleGrid::kMx                      ? kMxBlock
                       : is_by_part(op.a_grid) || is_by_part(op.b_grid) ? kScaleBlock
                                                                        : std::max<int64_t>(K, 1);
  return [=](const KernelArgs& args) {
    if (M == 0 || N == 0) return;
    const Product<Out> product{.a = operand_of(op.a_grid, M, K, args.in[0], args.in[1]),
                               .b = operand_of(op.b_grid, N, K, args.in[2], args.in[3]),
                               .K = K,
                               .part = part,
                               .bias = args.has(4) ? args.in[4].as<Out>() : nullptr,
                               .c = args.out[0].as<Out>(),
                               .accumulate = args.accumulate[0]};
    kernel<<<product_blocks(M, N), kThreads, 0, as_stream(args.stream)>>>(product);
    TOK_CUDA_LAUNCHED();
  };
}

struct Spread {
  const float* scale;
  float* scales;

  __device__ void operator()(int64_t i) const { scales[i] = *scale; }
};

struct AddBias {
  const float* bias;
  float* c;
  int64_t N;

  __device__ void operator()(int64_t i) const { c[i] += bias[i % N]; }
};

// cuBLASLt takes scales of rows only for both operands: then a single scale is spread over rows,
// after the library's part of the workspace. It adds only biases of bf16.
Kernel library_product(const ScaledMatmul& op, const KernelTypes& types, const Setup& setup) {
  const bool spreads_a = op.a_grid == ScaleGrid::kTensor && op.b_grid == ScaleGrid::kRows;
  const bool spreads_b = op.b_grid == ScaleGrid::kTensor && op.a_grid == ScaleGrid::kRows;
  const bool has_bias = types.in.size() == 5;
  const bool adds_bias = has_bias && op.out != DType::kBF16;
  GemmShape shape{.m = rows_of(types.in[0]),
                  .n = types.in[2].dims[0],
                  .k = types.in[2].dims[1],
                  .transpose_b = true,
                  .in = types.in[0].dtype,
                  .out = op.out,
                  .bias = has_bias && !adds_bias,
                  .workspace_bytes = kCublasWorkspace,
                  .scaled = ScaledGemm{.in_b = types.in[2].dtype,
                                       .a_grid = spreads_a ? ScaleGrid::kRows : op.a_grid,
                                       .b_grid = spreads_b ? ScaleGrid::kRows : op.b_grid,
                                       .fast_accumulation = op.fast_accumulation}};
  const int64_t spread = spreads_a ? shape.m : spreads_b ? shape.n : 0;
  shape.workspace_bytes -= (spread * size_of(DType::kF32) + 255) / 256 * 256;
  const Gemm gemm(shape, *setup.device);
  return [=](const KernelArgs& args) {
    auto* scales =
        reinterpret_cast<float*>(static_cast<std::byte*>(args.workspace) + shape.workspace_bytes);
    launch_for(spread, args.stream, Spread{args.in[spreads_a ? 1 : 3].as<float>(), scales});
    gemm.run({.a = args.in[0].data,
              .b = args.in[2].data,
              .a_scales = spreads_a ? scales : args.in[1].data,
              .b_scales = spreads_b ? scales : args.in[3].data,
              .bias = shape.bias ? args.in[4].data : nullptr,
              .c = args.out[0].data,
              .workspace = args.workspace,
              .accumulate = args.accumulate[0]},
             args.stream);
    if (adds_bias)
      launch_for(shape.m * shape.n, args.stream,
                 AddBias{args.in[4].as<float>(), args.out[0].as<float>(), shape.n});
  };
}

Kernel hopper_product(const ScaledMatmul& op, const KernelTypes& types, const Setup& setup) {
  const GemmShape shape{
      .m = rows_of(types.in[0]),
      .n = types.in[2].dims[0],
      .k = types.in[2].dims[1],
      .transpose_b = true,
      .in = types.in[0].dtype,
      .out = op.out,
      .scaled = ScaledGemm{.in_b = types.in[2].dtype, .a_grid = op.a_grid, .b_grid = op.b_grid}};
  return [gemm = HopperMatmul(shape, *setup.device)](const KernelArgs& args) {
    gemm.run({.a = args.in[0].data,
              .b = args.in[2].data,
              .a_scales = args.in[1].as<float>(),
              .b_scales = args.in[3].as<float>(),
              .c = args.out[0].data,
              .accumulate = args.accumulate[0]},
             args.stream);
  };
}

}  // namespace

Kernel prepare(const ScaledMatmul& op, const KernelTypes& types, const Setup& setup) {
  const bool is_empty = types.in[0].numel() == 0 || types.in[2].numel() == 0;
  // hipBLASLt does not multiply these formats.
  const bool is_own = setup.variant == kGpuKernel.name || is_empty || kIsHip;
  if (!is_own && setup.variant == "wgmma_fp8") return hopper_product(op, types, setup);
  if (!is_own) return library_product(op, types, setup);
  return op.out == DType::kBF16 ? portable_product<__nv_bfloat16>(op, types)
                                : portable_product<float>(op, types);
}

}  // namespace tokamak::gpu
