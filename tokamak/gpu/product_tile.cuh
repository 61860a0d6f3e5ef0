// The tiles that this project's matmul kernels share. A block computes 64 x 64 of C from tiles 16
// deep in shared memory; each thread sums 4 x 4 of them in registers.
#pragma once

#include "tokamak/gpu/dispatch.cuh"

namespace tokamak::gpu {

constexpr int kProductTile = 64;
constexpr int kProductDepth = 16;
constexpr int kProductEach = 4;  ///< a thread's rows and columns of a tile
constexpr int kProductPad = 4;   ///< keeps rows of a tile on 16-byte addresses in other banks

static_assert(kProductTile / kProductEach * (kProductTile / kProductEach) == kThreads);

/// Element [k][r], where r is a row of A or a column of B.
template <class A>
using ProductTile = A[kProductDepth][kProductTile + kProductPad];

/// Returns the first of a thread's rows of C within a tile.
__device__ inline int own_product_row() {
  return static_cast<int>(threadIdx.x) / (kProductTile / kProductEach) * kProductEach;
}

/// Returns the first of its columns.
__device__ inline int own_product_column() {
  return static_cast<int>(threadIdx.x) % (kProductTile / kProductEach) * kProductEach;
}

/// sum[i][j] += sum_k a[k][row + i] b[k][column + j], in order of k.
template <class A>
__device__ inline void multiply_tiles(const ProductTile<A>& a, const ProductTile<A>& b,
                                      A (&sum)[kProductEach][kProductEach]) {
#pragma unroll
  for (int k = 0; k < kProductDepth; ++k) {
    A x[kProductEach];
    A y[kProductEach];
    load<kProductEach>(&a[k][own_product_row()], x);
    load<kProductEach>(&b[k][own_product_column()], y);
#pragma unroll
    for (int i = 0; i < kProductEach; ++i) {
#pragma unroll
      for (int j = 0; j < kProductEach; ++j) sum[i][j] += x[i] * y[j];
    }
  }
}

/// Returns the grid of blocks that computes C [m, n].
inline dim3 product_blocks(int64_t m, int64_t n) {
  const auto tiles = [](int64_t x) {
    return static_cast<unsigned>((x + kProductTile - 1) / kProductTile);
  };
  return {tiles(m), tiles(n)};
}

/// C[m, n] = value (+ bias[n]) (+ C[m, n]) for each of a thread's elements that C has.
template <class A, class Out, class Bias>
__device__ inline void store_product(const A (&sum)[kProductEach][kProductEach], int64_t m0,
                                     int64_t n0, int64_t M, int64_t N, const Bias* bias, Out* c,
                                     bool accumulate) {
#pragma unroll
  for (int i = 0; i < kProductEach; ++i) {
#pragma unroll
    for (int j = 0; j < kProductEach; ++j) {
      const int64_t m = m0 + own_product_row() + i;
      const int64_t n = n0 + own_product_column() + j;
      if (m >= M || n >= N) continue;
      A value = sum[i][j];
      if (bias != nullptr) value += to<A>(bias[n]);
      if (accumulate) value += to<A>(c[m * N + n]);
      c[m * N + n] = to<Out>(value);
    }
  }
}

}  // namespace tokamak::gpu
