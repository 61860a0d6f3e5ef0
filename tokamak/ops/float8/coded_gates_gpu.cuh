// Gradients of packed gates, tile by tile, from codes of gate and up.
#pragma once

#include "tokamak/ops/elementwise/gate_codes_gpu.cuh"
#include "tokamak/ops/float8/gate_tiles_gpu.cuh"

namespace tokamak::gpu {

/// As GateSource, of what codes represent.
template <class T>
struct CodedGateSource {
  using Element = T;
  static constexpr int kParts = kGateParts;
  static constexpr int kE4M3Part = 2;
  static constexpr bool kHasAxes = true;
  CodedGates gates;
  const T* dy;
  int64_t M, F;

  __device__ int64_t rows() const { return M; }

  __device__ int64_t columns() const { return F; }

  __device__ void bring(int p, int64_t row, int64_t column, bool is_inside, T* into) const {
    if (p == 2) return copy_ahead(into, dy + row * F + column, is_inside);
    const uint8_t* const codes = p == 0 ? gates.gate : gates.up;
    const uint8_t* const scales = p == 0 ? gates.gate_scales : gates.up_scales;
    T values[kEach];
    CodedGates::decode(codes + row * gates.row_codes + column,
                       scales[row * gates.row_scales + column / kGateSegment], values);
#pragma unroll
    for (int j = 0; j < kEach; ++j) values[j] = is_inside ? values[j] : T(0.0F);
    gpu::store<kEach>(into, values);
  }

  template <bool kWhole>
  __device__ void load(int64_t row, int64_t column, T (&into)[kParts][kEach]) const {
    if constexpr (kWhole) {
      if (row < M && column < F) {
        gates.load(row, column, into[0], into[1]);
        return gpu::load<kEach>(dy + row * F + column, into[2]);
      }
    }
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      T g[1] = {T(0.0F)};
      T u[1] = {T(0.0F)};
      const bool is_inside = !kWhole && row < M && column + j < F;
      if (is_inside) gates.load(row, column + j, g, u);
      into[0][j] = g[0];
      into[1][j] = u[0];
      into[2][j] = is_inside ? dy[row * F + column + j] : T(0.0F);
    }
  }

  static __device__ void compute(T (&v)[kParts][kEach]) {
    differentiate_gates(v[0], v[1], v[2]);
  }

  template <bool kWhole>
  __device__ void store(const T (&)[kEach], int64_t, int64_t) const {}
};

}  // namespace tokamak::gpu
