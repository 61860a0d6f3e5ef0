// The kernel side of ops/row_sums.h.
#pragma once

#include "tokamak/cpu/parallel.h"
#include "tokamak/ops/row_sums.h"

namespace tokamak::cpu {

/// Calls body(row, sums) for each of N rows; `sums` is the block's `kSums` x D accumulators in
/// `workspace`, zero before its first row.
template <int64_t kSums, class A, class Body>
void sum_rows(int64_t N, int64_t D, void* workspace, Body&& body) {
  const int64_t blocks = row_blocks(N);
  parallel_rows(blocks, [&](int64_t block) {
    A* sums = static_cast<A*>(workspace) + block * kSums * D;
    std::fill(sums, sums + kSums * D, A{0});
    for (int64_t n = N * block / blocks; n < N * (block + 1) / blocks; ++n) body(n, sums);
  });
}

/// out[d] (+)= the sum over blocks of accumulator `k`.
template <int64_t kSums, class A>
void add_blocks(int64_t N, int64_t D, const void* workspace, int64_t k, A* out, bool add) {
  const A* sums = static_cast<const A*>(workspace) + k * D;
  const int64_t blocks = row_blocks(N);
  if (!add) std::fill(out, out + D, A{0});
  for (int64_t block = 0; block < blocks; ++block) {
    const A* row = sums + block * kSums * D;
#pragma omp simd
    for (int64_t d = 0; d < D; ++d) out[d] += row[d];
  }
}

}  // namespace tokamak::cpu
