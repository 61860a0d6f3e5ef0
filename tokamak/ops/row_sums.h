// How the gradients of norms sum their parameters' gradients over rows: rows are cut into blocks
// that depend on the shape only, each block sums into its own row of the workspace, and the blocks
// are added in order. So the bits do not depend on the thread count.
#pragma once

#include <algorithm>
#include <array>

#include "tokamak/ops/rules.h"

namespace tokamak {

/// Returns the number of blocks of N rows; block b is rows [N b / blocks, N (b + 1) / blocks).
constexpr int64_t row_blocks(int64_t N) {
  return std::clamp<int64_t>(N / 16, 1, 64);
}

/// Blocks on a GPU, each of which takes every kGpuRowBlocks-th group of rows.
constexpr int64_t kGpuRowBlocks = 264;

/// Returns the bytes of one row of sums for each of `blocks` blocks of x.
inline int64_t row_sum_bytes(const TensorType& x, int64_t blocks) {
  return blocks * x.dims.back() * size_of(gradient_dtype(x.dtype));
}

/// Returns the plain variants with a workspace of `kSums` rows of D per block of in[0] [N, D].
template <int64_t kSums>
std::span<const Variant> with_row_sums() {
  static constexpr std::array kVariants{
      Variant{.name = kCpuReference.name,
              .backend = kCpuReference.backend,
              .workspace =
                  [](const void*, const KernelTypes& types, const Target&) {
                    return kSums * row_sum_bytes(types.in[0], row_blocks(rows_of(types.in[0])));
                  }},
      Variant{.name = kGpuKernel.name,
              .backend = kGpuKernel.backend,
              .workspace = [](const void*, const KernelTypes& types, const Target&) {
                return kSums * row_sum_bytes(types.in[0], kGpuRowBlocks);
              }}};
  return kVariants;
}

}  // namespace tokamak
