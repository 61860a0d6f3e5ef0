#include "tokamak/core/mx.h"
#include "tokamak/core/nvfp4.h"
#include "tokamak/gpu/amax.cuh"
#include "tokamak/gpu/dispatch.cuh"
#include "tokamak/gpu/float8.cuh"
#include "tokamak/ops/float8/code_counts.h"

namespace tokamak::gpu {
namespace {

constexpr int kNeighbours = 16;  // of a row, under one scale, that a thread counts at once
constexpr unsigned kMostBlocks = 2048;

template <class Format>
__device__ float decode_code(uint32_t bits) {
  if constexpr (std::is_same_v<Format, E2M1>) {
    E2M1 code;
    code.bits = static_cast<uint8_t>(bits);
    return static_cast<float>(code);
  } else {
    return decode_float8<Format>(static_cast<uint8_t>(bits));
  }
}

template <class Format>
struct CodeReader {
  static constexpr bool kIsFloat4 = std::is_same_v<Format, E2M1>;
  static constexpr uint32_t kMagnitude = kIsFloat4 ? 0x7U : 0x7FU;
  // The code of the largest magnitude.
  static constexpr uint32_t kLargest = kIsFloat4                      ? 0x7U
                                       : std::is_same_v<Format, E4M3> ? 0x7EU
                                                                      : 0x7BU;

  const uint8_t* codes;
  const void* scales;
  ScaleGrid grid;
  int64_t rows, columns;

  __device__ uint32_t magnitude(int64_t row, int64_t column) const {
    const int64_t i = row * columns + column;
    if constexpr (kIsFloat4) return codes[i / 2] >> (i % 2 * 4) & kMagnitude;
    return codes[i] & kMagnitude;
  }

  __device__ float inverse(int64_t row, int64_t column) const {
    const int64_t at = scale_index(grid, rows, columns, row, column);
    const auto* bytes = static_cast<const uint8_t*>(scales);
    if constexpr (kIsFloat4) {
      const float of_tensor =
          *reinterpret_cast<const float*>(bytes + tensor_scale_index(rows, columns));
      return decode_float8<E4M3>(bytes[at]) * of_tensor;
    }
    if (grid == ScaleGrid::kMx) return static_cast<float>(E8M0{bytes[at]});
    return static_cast<const float*>(scales)[at];
  }
};

__global__ void begin_counts(double total, bool adds, double* counts, uint32_t* most,
                             uint32_t* most_inverse) {
  counts[0] = total + (adds ? counts[0] : 0.0);
  for (int i = 1; i < CodeCounts::kNumCounts; ++i) counts[i] = adds ? counts[i] : 0.0;
  *most = 0;
  *most_inverse = 0;
}

// Sums of whole numbers in doubles are exact in any order.
template <class Format>
__global__ void __launch_bounds__(kThreads)
    count_codes(CodeReader<Format> in, double* counts, uint32_t* most, uint32_t* most_inverse) {
  __shared__ uint32_t sums[4];  // zeros, largest, and both maxima
  if (threadIdx.x < 4) sums[threadIdx.x] = 0;
  __syncthreads();
  const int64_t units = (in.columns + kNeighbours - 1) / kNeighbours;
  uint32_t zeros = 0;
  uint32_t largest = 0;
  uint32_t greatest = 0;
  uint32_t inverse = 0;
  for (int64_t u = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; u < in.rows * units;
       u += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t row = u / units;
    const int64_t first = u % units * kNeighbours;
    const int64_t end = min(first + kNeighbours, in.columns);
    uint32_t code = 0;
    for (int64_t column = first; column < end; ++column) {
      const uint32_t magnitude = in.magnitude(row, column);
      zeros += magnitude == 0 ? 1 : 0;
      largest += magnitude == CodeReader<Format>::kLargest ? 1 : 0;
      code = max(code, magnitude);
    }
    const float scale = in.inverse(row, first);
    greatest = max(greatest, magnitude_of(decode_code<Format>(code) * scale));
    inverse = max(inverse, magnitude_of(scale));
  }
  atomicAdd(&sums[0], zeros);
  atomicAdd(&sums[1], largest);
  atomicMax(&sums[2], greatest);
  atomicMax(&sums[3], inverse);
  __syncthreads();
  if (threadIdx.x != 0) return;
  atomicAdd(counts + 1, static_cast<double>(sums[0]));
  atomicAdd(counts + 2, static_cast<double>(sums[1]));
  atomicMax(most, sums[2]);
  atomicMax(most_inverse, sums[3]);
}

template <class Format>
void launch_counts(const CodeReader<Format>& in, const KernelArgs& a) {
  const int64_t units = in.rows * ((in.columns + kNeighbours - 1) / kNeighbours);
  auto* counts = a.out[0].as<double>();
  auto* most = a.out[1].as<uint32_t>();
  auto* most_inverse = a.out[2].as<uint32_t>();
  begin_counts<<<1, 1, 0, as_stream(a.stream)>>>(static_cast<double>(in.rows * in.columns),
                                                 a.accumulate[0], counts, most, most_inverse);
  TOK_CUDA_LAUNCHED();
  count_codes<<<std::min(blocks_for(units), kMostBlocks), kThreads, 0, as_stream(a.stream)>>>(
      in, counts, most, most_inverse);
  TOK_CUDA_LAUNCHED();
}

}  // namespace

Kernel prepare(const CodeCounts& op, const KernelTypes& types, const Setup&) {
  const TensorType codes = types.in[0];
  return [codes, grid = op.grid](const KernelArgs& a) {
    const auto launch = [&]<class Format>() {
      launch_counts(
          CodeReader<Format>{.codes = a.in[0].as<uint8_t>(),
                             .scales = a.in[1].as<uint8_t>(),
                             .grid = grid,
                             .rows = rows_of(codes),
                             .columns = codes.dims.back() * codes_per_element(codes.dtype)},
          a);
    };
    if (is_nvfp4(grid)) return launch.template operator()<E2M1>();
    by_float8(codes.dtype, launch);
  };
}

}  // namespace tokamak::gpu
