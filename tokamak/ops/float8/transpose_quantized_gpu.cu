#include "tokamak/ops/float8/encode_gpu.cuh"
#include "tokamak/ops/float8/transpose_quantized.h"

namespace tokamak::gpu {
namespace {

constexpr int kAccess = 16;  // quantized values
constexpr int kLanes = kTile / kAccess;

// Each block transposes 128 x 128 quantized values through shared memory, 16 bytes per access.
template <bool kWhole>
__global__ void __launch_bounds__(kThreads)
    transpose_tiles(int64_t R, int64_t K, const uint8_t* quantized, uint8_t* into) {
  __shared__ __align__(16) uint32_t tile[kTileWords];
  const int thread = static_cast<int>(threadIdx.x);
  const auto tiles = static_cast<unsigned>((K + kTile - 1) / kTile);
  const int64_t row = static_cast<int64_t>(blockIdx.x / tiles) * kTile;
  const int64_t column = static_cast<int64_t>(blockIdx.x % tiles) * kTile;
  const int own_column = thread % kLanes * kAccess;
  constexpr int kRowsEach = kThreads / kLanes;
  const int own_row = thread / kLanes;
  const OwnRows<const uint8_t> own =
      own_rows(quantized, R, K, row + own_row, column + own_column, K);
  uint32_t* const own_words = &tile[word_at(own_row, own_column / 4)];
#pragma unroll
  for (int below = 0; below < kTile; below += kRowsEach) {
    uint4 words{};
    if constexpr (kWhole) {
      if (own.has(below)) words = *reinterpret_cast<const uint4*>(own.at(below));
    } else {
      uint8_t bytes[kAccess] = {};
#pragma unroll
      for (int j = 0; j < kAccess; ++j) {
        if (own.has(below) && j < K - column - own_column) bytes[j] = own.at(below)[j];
      }
      memcpy(&words, bytes, sizeof(words));
    }
    *reinterpret_cast<uint4*>(own_words + word_at(below, 0)) = words;
  }
  __syncthreads();
  store_transposed(tile, row, column, R, K, into);
}

// Scales of blocks at (row, column) of the transposed matrix, 0 in its padding.
struct TransposeScales {
  const float* scales;
  float* into;
  int64_t rows, columns;      // of blocks, in the matrix before the transpose
  int64_t width, width_into;  // with padding

  __device__ void operator()(int64_t i) const {
    const int64_t row = i / width_into;
    const int64_t column = i % width_into;
    into[i] = row < columns && column < rows ? scales[column * width + row] : 0.0F;
  }
};

}  // namespace

Kernel prepare(const TransposeQuantized& op, const KernelTypes& types, const Setup&) {
  const int64_t R = types.in[0].dims[0];
  const int64_t K = types.in[0].dims[1];
  const bool has_blocks = op.grid == ScaleGrid::kBlocks;
  return [=](const KernelArgs& args) {
    if (R == 0 || K == 0) return;
    const auto* quantized = args.in[0].as<uint8_t>();
    auto* into = args.out[0].as<uint8_t>();
    const cudaStream_t stream = as_stream(args.stream);
    const auto blocks = static_cast<unsigned>(tiles_of(R) * tiles_of(K));
    if (K % kAccess == 0 && detail::is_aligned(quantized)) {
      transpose_tiles<true><<<blocks, kThreads, 0, stream>>>(R, K, quantized, into);
    } else {
      transpose_tiles<false><<<blocks, kThreads, 0, stream>>>(R, K, quantized, into);
    }
    TOK_CUDA_LAUNCHED();
    if (!has_blocks) return;
    launch_for(args.out[1].numel(), args.stream,
               TransposeScales{.scales = args.in[1].as<float>(),
                               .into = args.out[1].as<float>(),
                               .rows = tiles_of(R),
                               .columns = tiles_of(K),
                               .width = args.in[1].dim(-1),
                               .width_into = args.out[1].dim(-1)});
  };
}

}  // namespace tokamak::gpu
