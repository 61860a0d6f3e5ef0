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

  // The 8 neighbours of a thread share a scale, since segments begin at multiples of 8.
  struct Own {
    OwnRows<const uint8_t> codes[2];   // of gate and up
    OwnRows<const uint8_t> scales[2];  // one for each row
    OwnRows<const T> dy;

    // Decodes neighbours of gate or up; zeros where the matrix has none.
    template <bool kWhole>
    __device__ void decode(int p, int row, T (&into)[kEach]) const {
      if constexpr (kWhole) {
        if (codes[p].has(row))
          return CodedGates::decode(codes[p].at(row), *scales[p].at(row), into);
      }
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        T one[1] = {T(0.0F)};
        if (!kWhole && codes[p].has(row) && j < codes[p].columns)
          CodedGates::decode(codes[p].at(row) + j, *scales[p].at(row), one);
        into[j] = one[0];
      }
    }

    __device__ void bring(int p, int row, T* into) const {
      if (p == 2) return copy_ahead(into, dy.at(row), dy.has(row));
      T values[kEach];
      decode<true>(p, row, values);
      gpu::store<kEach>(into, values);
    }

    template <bool kWhole>
    __device__ void load(int row, T (&into)[kParts][kEach]) const {
      decode<kWhole>(0, row, into[0]);
      decode<kWhole>(1, row, into[1]);
      load_row<kWhole>(dy, row, into[2]);
    }

    template <bool kWhole>
    __device__ void store(const T (&)[kEach], int) const {}
  };

  __device__ int64_t rows() const {
    return M;
  }

  __device__ int64_t columns() const {
    return F;
  }

  __device__ Own own(int64_t row, int64_t column) const {
    const auto codes = [&](const uint8_t* of) {
      return own_rows(of, M, F, row, column, gates.row_codes);
    };
    const auto scales = [&](const uint8_t* of) {
      const int64_t segment = column / kGateSegment;
      return own_rows(of, M, gates.row_scales, row, segment, gates.row_scales);
    };
    return {{codes(gates.gate), codes(gates.up)},
            {scales(gates.gate_scales), scales(gates.up_scales)},
            own_rows(dy, M, F, row, column, F)};
  }

  static __device__ void compute(T (&v)[kParts][kEach]) {
    differentiate_gates(v[0], v[1], v[2]);
  }
};

}  // namespace tokamak::gpu
