// Hopper's own instructions: matmuls of warp groups, copies of tiles by tensor maps, barriers that
// count bytes, and clusters of blocks. For sm_90a alone.
#pragma once

#include <cstdint>

#include <cuda.h>

#include "tokamak/gpu/mbarrier.cuh"

namespace tokamak::gpu::hopper {

/// Threads that multiply together: four warps, the first of which has an index that four divides.
inline constexpr int kWarpGroup = 128;

/// A barrier that other blocks of the cluster may arrive at.
class Barrier : public CountingBarrier {
 public:
  /// Arrives at this barrier of the cluster's block `rank`.
  __device__ void arrive_at(uint32_t rank) {
    asm volatile(
        "{\n"
        ".reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
        "}" ::"r"(address()),
        "r"(rank)
        : "memory");
  }
};

__device__ inline uint32_t rank_in_cluster() {
  uint32_t rank = 0;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

/// Returns once all threads of the cluster have come.
__device__ inline void synchronize_cluster() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

/// Starts a copy of the map's box at (x, y), x along rows, into `into`; `done` counts its bytes.
__device__ inline void copy_box(const CUtensorMap& map, void* into, Barrier& done, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4}], [%2];" ::"r"(shared_address(into)),
      "l"(&map), "r"(done.address()), "r"(x), "r"(y)
      : "memory");
}

/// Does what copy_box does, into the same places of all blocks of the cluster that `blocks` has
/// bits of.
__device__ inline void copy_box_to(uint16_t blocks, const CUtensorMap& map, void* into,
                                   Barrier& done, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(into)),
      "l"(&map), "r"(done.address()), "r"(x), "r"(y), "h"(blocks)
      : "memory");
}

/// Gives registers of this warp group away, or takes them.
template <int kRegisters>
__device__ inline void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ inline void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// Describes rows of 128 bytes in shared memory, eight of which are 1024 bytes, swizzled as copies
/// with CU_TENSOR_MAP_SWIZZLE_128B leave them. REQUIRES: `rows` is a multiple of 1024, or such a
/// multiple and a start within the row.
__device__ inline uint64_t describe_rows(uint32_t rows) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62U;
  constexpr uint64_t kEightRows = uint64_t{1024 >> 4U} << 32U;
  constexpr uint64_t kUnused = uint64_t{1} << 16U;
  return kSwizzle128 | kEightRows | kUnused | (rows & 0x3FFFFU) >> 4U;
}

/// Orders registers and shared memory before the matmuls that follow.
__device__ inline void begin_multiply() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ inline void end_multiply() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/// Returns once all matmuls of this warp group are done; then `sums` may be read.
__device__ inline void wait_for_sums(float (&sums)[64]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (float& sum : sums) asm volatile("" : "+f"(sum)::"memory");
}

#define TOK_SUMS_8(d, i)                                                                      \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define TOK_MULTIPLY(format_a, format_b)                                                       \
  asm volatile(                                                                                \
      "{\n"                                                                                    \
      ".reg .pred adds;\n"                                                                     \
      "setp.ne.b32 adds, %66, 0;\n"                                                            \
      "wgmma.mma_async.sync.aligned.m64n128k32.f32." format_a "." format_b                     \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "               \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "       \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "       \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "      \
      "%64, %65, adds, 1, 1;\n"                                                                \
      "}"                                                                                      \
      : TOK_SUMS_8(sums, 0), TOK_SUMS_8(sums, 8), TOK_SUMS_8(sums, 16), TOK_SUMS_8(sums, 24),  \
        TOK_SUMS_8(sums, 32), TOK_SUMS_8(sums, 40), TOK_SUMS_8(sums, 48), TOK_SUMS_8(sums, 56) \
      : "l"(a), "l"(b), "r"(static_cast<int>(adds)))

/// sums[64, 128] = or += a[64, 32] b[128, 32]^T, of quantized values in E4M3, or E5M2 for a. Thread
/// t of the group holds in sums[4 j + 2 h + i] row 16 (t / 32) + 8 h + t % 32 / 4, column 8 j + 2
/// (t % 4) + i.
template <bool kIsE5M2>
__device__ inline void multiply(float (&sums)[64], uint64_t a, uint64_t b, bool adds) {
  if constexpr (kIsE5M2) {
    TOK_MULTIPLY("e5m2", "e4m3");
  } else {
    TOK_MULTIPLY("e4m3", "e4m3");
  }
}

#undef TOK_MULTIPLY
#undef TOK_SUMS_8

/// Stores four 8 x 8 matrices of 16-bit elements, of which each thread holds two of a row; lane l
/// gives the address of row l % 8 of matrix l / 8.
__device__ inline void store_matrices(uint32_t row, const uint32_t (&pairs)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
               "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
               : "memory");
}

}  // namespace tokamak::gpu::hopper
