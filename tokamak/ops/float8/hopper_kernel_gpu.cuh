// The quantized matmul on Hopper: C[m, n] (+)= sum_k a[m, k] b[n, k]. Each 128 quantized
// values of a row of A, and each 128 x 128 quantized values of B, share an inverse scale. Tensor
// cores keep some 14 bits of their sums, so those of 128 products are scaled and added up in fp32
// registers.
#pragma once

#include <cuda_bf16.h>

#include "tokamak/ops/float8/wgmma_gpu.cuh"

namespace tokamak::gpu::hopper {

/// A block computes kTileM x kTileN of C. Each of kGroups warp groups multiplies 64 rows, while one
/// more copies operands kPart wide, up to kStages ahead. The two blocks of a cluster lie side by
/// side along N and share their rows of A, of which each copies a half for both.
inline constexpr int kGroups = 3;
inline constexpr int kCluster = 2;
inline constexpr int kStages = 4;
inline constexpr int kTileM = 64 * kGroups;
inline constexpr int kTileN = 128;
inline constexpr int kPart =
    128;  ///< quantized values of a row with one scale, the width of the swizzle
inline constexpr int kHalfM = kTileM / kCluster;
inline constexpr int kBlockThreads = (kGroups + 1) * kWarpGroup;

/// A matmul's operands, as the kernel takes them.
struct ScaledOperands {
  CUtensorMap a;           ///< quantized values [M, K], boxes of kHalfM x kPart
  CUtensorMap b;           ///< quantized values [N, K], boxes of kTileN x kPart
  CUtensorMap a_inverse;   ///< scales [K / kPart, M], boxes of 1 x kHalfM
  const float* b_inverse;  ///< scales of blocks
  int64_t b_step;          ///< from one row of blocks to the next
  void* c;
  int M, N, parts;
  bool accumulate;
};

/// The block's shared memory, which begins at a multiple of 1024.
struct Shared {
  struct Stage {
    uint8_t a[kTileM * kPart];
    uint8_t b[kTileN * kPart];
  };

  Stage stages[kStages];
  uint8_t rows[4 * kGroups][16 * 128];  ///< in which each warp turns sums into rows of C
  float a_scales[kStages][kTileM];
  Barrier full[kStages];
  Barrier empty[kStages];
};

inline constexpr int kBlockBytes = static_cast<int>(sizeof(Shared)) + 1024;
static_assert(kBlockBytes <= 227 << 10 && sizeof(Shared::Stage) % 1024 == 0);

/// A place in the ring of stages.
struct Place {
  int stage = 0;
  uint32_t parity = 0;

  __device__ void advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1U;
  }
};

/// The tiles of C that this block computes, band after band of rows, so that blocks that run at the
/// same time share operands in the L2 cache.
struct Tiles {
  static constexpr int kBand = 2048 / kTileM;

  __device__ explicit Tiles(const ScaledOperands& p)
      : down((p.M + kTileM - 1) / kTileM),
        across((p.N + kCluster * kTileN - 1) / (kCluster * kTileN)),
        rank(static_cast<int>(rank_in_cluster())),
        tile(static_cast<int>(blockIdx.x) / kCluster) {}

  __device__ bool is_done() const { return tile >= down * across; }

  __device__ void advance() { tile += static_cast<int>(gridDim.x) / kCluster; }

  __device__ int band() const { return tile / (kBand * across) * kBand; }

  __device__ int in_band() const { return tile % (kBand * across); }

  __device__ int height() const { return min(kBand, down - band()); }

  __device__ int m0() const { return (band() + in_band() % height()) * kTileM; }

  __device__ int n0() const { return (in_band() / height() * kCluster + rank) * kTileN; }

  int down, across, rank, tile;
};

/// Copies this block's share of what the cluster needs of one part.
__device__ inline void copy_part(const ScaledOperands& p, Shared& shared, int stage, int part,
                                 int m0, int n0, int rank) {
  constexpr uint16_t kAll = (1U << kCluster) - 1U;
  Shared::Stage& quantized = shared.stages[stage];
  Barrier& full = shared.full[stage];
  const int half = rank * kHalfM;
  full.expect(sizeof(quantized) + sizeof(shared.a_scales[stage]));
  copy_box_to(kAll, p.a, quantized.a + half * kPart, full, part * kPart, m0 + half);
  copy_box_to(kAll, p.a_inverse, shared.a_scales[stage] + half, full, m0 + half, part);
  copy_box(p.b, quantized.b, full, part * kPart, n0);
}

__device__ inline void copy_parts(const ScaledOperands& p, Shared& shared) {
  Place place;
  for (Tiles tiles(p); !tiles.is_done(); tiles.advance()) {
    const int m0 = tiles.m0();
    const int n0 = tiles.n0();
    for (int part = 0; part < p.parts; ++part, place.advance()) {
      shared.empty[place.stage].wait(place.parity ^ 1U);
      copy_part(p, shared, place.stage, part, m0, n0, tiles.rank);
    }
  }
}

/// The first of the two rows of its warp group, 8 apart, of which this thread has sums.
__device__ inline int own_row() {
  const int thread = static_cast<int>(threadIdx.x) % kWarpGroup;
  return thread / 32 * 16 + thread % 32 / 4;
}

/// The first of two columns of every eight, of which this thread has sums.
__device__ inline int own_column() {
  return static_cast<int>(threadIdx.x) % 4 * 2;
}

__device__ inline void release(Shared& shared, int stage) {
  const uint32_t lane = threadIdx.x % 32;
  __syncwarp();
  if (lane < kCluster) shared.empty[stage].arrive_at(lane);
}

/// total = the sums of 64 rows of the tile, those of warp group `group`, over all parts. While one
/// group adds a part's sums up, the others multiply.
template <bool kIsE5M2>
__device__ void sum_tile(const ScaledOperands& p, Shared& shared, Place& place, int group, int n0,
                         float (&total)[64]) {
  const float* b_scales = p.b_inverse + min(n0, p.N - 1) / kPart * p.b_step;
  float b_next = __ldg(b_scales);
#pragma unroll
  for (float& x : total) x = 0.0F;
#pragma unroll 1
  for (int part = 0; part < p.parts; ++part, place.advance()) {
    const int stage = place.stage;
    const float b_scale = b_next;
    b_next = __ldg(b_scales + min(part + 1, p.parts - 1));
    shared.full[stage].wait(place.parity);
    const uint64_t a = describe_rows(shared_address(shared.stages[stage].a + group * 64 * kPart));
    const uint64_t b = describe_rows(shared_address(shared.stages[stage].b));
    float scales[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) scales[i] = shared.a_scales[stage][group * 64 + own_row() + 8 * i];
    float sums[64];
    begin_multiply();
#pragma unroll
    for (int k = 0; k < kPart / 32; ++k) multiply<kIsE5M2>(sums, a + k * 2, b + k * 2, k > 0);
    end_multiply();
#pragma unroll
    for (float& scale : scales) scale *= b_scale;
    wait_for_sums(sums);
#pragma unroll
    for (int i = 0; i < 64; ++i) total[i] = fmaf(sums[i], scales[i / 2 % 2], total[i]);
    release(shared, stage);
  }
}

/// total += what C holds in the thread's rows, `row` and the eighth below.
template <class Out>
__device__ void add_old(const ScaledOperands& p, int row, int n0, float (&total)[64]) {
#pragma unroll
  for (int i = 0; i < 64; ++i) {
    const int m = row + i / 2 % 2 * 8;
    const int n = n0 + i / 4 * 8 + own_column() + i % 2;
    if (m < p.M && n < p.N)
      total[i] +=
          static_cast<float>(static_cast<const Out*>(p.c)[static_cast<int64_t>(m) * p.N + n]);
  }
}

// Writes 16 rows of 128 bytes of the warp's sums, those of columns from `kChunk` * 128 bytes on.
// Words of 16 bytes are permuted so that no two accesses meet in a bank.
template <class Out, int kChunk>
__device__ void write_chunk(const float (&total)[64], uint8_t* rows) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if constexpr (sizeof(Out) == 2) {
    const int row = lane % 16;
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = 4 * (8 * kChunk + j) + 2 * i;
        const __nv_bfloat162 pair = __floats2bfloat162_rn(total[at], total[at + 1]);
        pairs[i] = *reinterpret_cast<const uint32_t*>(&pair);
      }
      store_matrices(shared_address(rows + row * 128 + ((j + lane / 16) ^ (row % 8)) * 16), pairs);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int row = lane / 4 + i % 2 * 8;
      const int word = (i / 2 * 2 + lane % 4 / 2) ^ (row % 4 * 2);
      const int at = 16 * kChunk + 2 * i;
      *reinterpret_cast<float2*>(rows + row * 128 + word * 16 + lane % 2 * 8) =
          make_float2(total[at], total[at + 1]);
    }
  }
}

template <class Out>
__device__ uint4 read_word(const uint8_t* rows, int row, int word) {
  const int swizzle = sizeof(Out) == 2 ? row % 8 : row % 4 * 2;
  return *reinterpret_cast<const uint4*>(rows + row * 128 + (word ^ swizzle) * 16);
}

template <class Out, int kChunk>
__device__ void store_chunk(const ScaledOperands& p, int row0, int n0, const float (&total)[64],
                            uint8_t* rows) {
  constexpr int kColumns = 128 / static_cast<int>(sizeof(Out));
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int column = n0 + kChunk * kColumns + lane % 8 * (kColumns / 8);
  write_chunk<Out, kChunk>(total, rows);
  __syncwarp();
#pragma unroll
  for (int row = lane / 8; row < 16; row += 4) {
    if (row0 + row >= p.M || column >= p.N) continue;
    const uint4 words = read_word<Out>(rows, row, lane % 8);
    *reinterpret_cast<uint4*>(static_cast<Out*>(p.c) + static_cast<int64_t>(row0 + row) * p.N +
                              column) = words;
  }
  __syncwarp();
}

/// Stores 16 rows from `row0` on, those of this warp.
template <class Out>
__device__ void store_rows(const ScaledOperands& p, int row0, int n0, const float (&total)[64],
                           uint8_t* rows) {
  store_chunk<Out, 0>(p, row0, n0, total, rows);
  store_chunk<Out, 1>(p, row0, n0, total, rows);
  if constexpr (sizeof(Out) == 4) {
    store_chunk<Out, 2>(p, row0, n0, total, rows);
    store_chunk<Out, 3>(p, row0, n0, total, rows);
  }
}

template <bool kIsE5M2, class Out>
__device__ void multiply_tiles(const ScaledOperands& p, Shared& shared, int group) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  Place place;
  for (Tiles tiles(p); !tiles.is_done(); tiles.advance()) {
    float total[64];
    const int n0 = tiles.n0();
    const int m0 = tiles.m0() + group * 64;
    sum_tile<kIsE5M2>(p, shared, place, group, n0, total);
    if (p.accumulate) add_old<Out>(p, m0 + own_row(), n0, total);
    store_rows<Out>(p, m0 + warp % 4 * 16, n0, total, shared.rows[warp]);
  }
}

/// C (+)= A B^T, by clusters of blocks that take tiles in turn.
template <bool kIsE5M2, class Out>
__global__ void __launch_bounds__(kBlockThreads, 1)
    multiply_quantized(const __grid_constant__ ScaledOperands p) {
  extern __shared__ uint8_t raw[];
  auto& shared = *reinterpret_cast<Shared*>(raw + (1024 - shared_address(raw) % 1024) % 1024);
  const int group = __shfl_sync(0xFFFFFFFFU, static_cast<int>(threadIdx.x) / kWarpGroup, 0);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      shared.full[stage].init(1);
      shared.empty[stage].init(4 * kGroups * kCluster);
    }
    Barrier::publish();
  }
  synchronize_cluster();
  if (group == kGroups) {
    shrink_registers<32>();
    if (threadIdx.x == kGroups * kWarpGroup) copy_parts(p, shared);
  } else {
    grow_registers<160>();
    multiply_tiles<kIsE5M2, Out>(p, shared, group);
  }
  synchronize_cluster();
}

}  // namespace tokamak::gpu::hopper
