// The inner parts of matmuls on AMX: packing of operands into tiles, and a block of sums.
// Layouts: Intel 64 and IA-32 Architectures Optimization Reference Manual, chapter on AMX.
#pragma once

#if defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__AVX512BW__) && \
    defined(__AVX512VL__) && defined(__linux__)
#define TOK_AMX 1

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <type_traits>

#include <immintrin.h>

namespace tokamak::cpu::amx {

inline constexpr int64_t kTile = 16;                // rows of a tile, and its fp32 columns
inline constexpr int64_t kPanel = 2 * kTile;        // rows of A or columns of B per block of sums
inline constexpr int64_t kDepth = 32;               // inner elements per step
inline constexpr int64_t kStep = kPanel * kDepth;   // elements per step of a panel: two tiles
inline constexpr int64_t kBlock = kPanel * kPanel;  // sums

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  std::array<uint8_t, 14> reserved{};
  std::array<uint16_t, 16> row_bytes{};
  std::array<uint8_t, 16> rows{};
};

/// Configures eight full tiles for the calling thread while the object lives.
class TileScope {
 public:
  TileScope() {
    TileConfig config;
    std::fill_n(config.row_bytes.begin(), 8, uint16_t{64});
    std::fill_n(config.rows.begin(), 8, uint8_t{kTile});
    _tile_loadconfig(&config);
  }

  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;

  ~TileScope() { _tile_release(); }
};

/// A row-major bf16 matrix of lanes and inner elements k; a lane is a row of A or a column of B.
struct Operand {
  const uint16_t* data;
  int64_t ld;  // elements from one row of the matrix to the next
  bool lanes_are_rows;
};

inline __mmask16 mask16(int64_t n) {
  return static_cast<__mmask16>((1U << std::clamp<int64_t>(n, 0, 16)) - 1U);
}

inline __mmask32 mask32(int64_t n) {
  return static_cast<__mmask32>((uint64_t{1} << std::clamp<int64_t>(n, 0, 32)) - 1U);
}

// std::array would drop the alignment of its element type.
struct TileRows {
  __m512i row[kTile];  // NOLINT(modernize-avoid-c-arrays)
};

/// Row i holds 16 pairs of inner elements of lane + i from k on; zero beyond `lanes` and `depth`.
inline TileRows load_lanes(const Operand& x, int64_t lane, int64_t lanes, int64_t k,
                           int64_t depth) {
  TileRows rows;
  const __mmask32 mask = mask32(depth);
  for (int64_t i = 0; i < kTile; ++i) {
    rows.row[i] = i < lanes ? _mm512_maskz_loadu_epi16(mask, x.data + (lane + i) * x.ld + k)
                            : _mm512_setzero_si512();
  }
  return rows;
}

/// Row i holds the pairs of inner elements k + 2 i and k + 2 i + 1 of 16 lanes; zero beyond.
inline TileRows load_pairs(const Operand& x, int64_t lane, int64_t lanes, int64_t k,
                           int64_t depth) {
  const __mmask16 mask = mask16(lanes);
  const auto row = [&](int64_t i) {
    return _mm512_cvtepu16_epi32(
        _mm256_maskz_loadu_epi16(i < depth ? mask : __mmask16{0}, x.data + (k + i) * x.ld + lane));
  };
  TileRows rows;
  for (int64_t i = 0; i < kTile; ++i)
    rows.row[i] = _mm512_or_si512(row(2 * i), _mm512_slli_epi32(row(2 * i + 1), 16));
  return rows;
}

/// Transposes 16 x 16 elements of 32 bits.
inline TileRows transpose(const TileRows& in) {
  TileRows a;
  TileRows b;
  for (size_t i = 0; i < 16; i += 2) {
    a.row[i] = _mm512_unpacklo_epi32(in.row[i], in.row[i + 1]);
    a.row[i + 1] = _mm512_unpackhi_epi32(in.row[i], in.row[i + 1]);
  }
  for (size_t i = 0; i < 16; i += 4) {
    b.row[i] = _mm512_unpacklo_epi64(a.row[i], a.row[i + 2]);
    b.row[i + 1] = _mm512_unpackhi_epi64(a.row[i], a.row[i + 2]);
    b.row[i + 2] = _mm512_unpacklo_epi64(a.row[i + 1], a.row[i + 3]);
    b.row[i + 3] = _mm512_unpackhi_epi64(a.row[i + 1], a.row[i + 3]);
  }
  for (size_t i = 0; i < 16; i += 8) {
    for (size_t j = 0; j < 4; ++j) {
      a.row[i + j] = _mm512_shuffle_i32x4(b.row[i + j], b.row[i + j + 4], 0x88);
      a.row[i + j + 4] = _mm512_shuffle_i32x4(b.row[i + j], b.row[i + j + 4], 0xDD);
    }
  }
  for (size_t j = 0; j < 8; ++j) {
    b.row[j] = _mm512_shuffle_i32x4(a.row[j], a.row[j + 8], 0x88);
    b.row[j + 8] = _mm512_shuffle_i32x4(a.row[j], a.row[j + 8], 0xDD);
  }
  return b;
}

/// Packs one step of a panel, from (lane, k) on: two tiles whose rows are lanes (of A) or pairs of
/// inner elements (of B); zero beyond the operand's `lanes` and `depth` from there.
inline void pack_step(const Operand& x, int64_t lane, int64_t lanes, int64_t k, int64_t depth,
                      bool rows_are_lanes, uint16_t* out) {
  for (int64_t half = 0; half < kPanel; half += kTile) {
    TileRows rows = x.lanes_are_rows ? load_lanes(x, lane + half, lanes - half, k, depth)
                                     : load_pairs(x, lane + half, lanes - half, k, depth);
    if (x.lanes_are_rows != rows_are_lanes) rows = transpose(rows);
    for (const __m512i& row : rows.row) {
      _mm512_store_si512(out, row);
      out += kDepth;
    }
  }
}

/// Packs a panel of A whose lanes are rows, from (lane, k) on: makes the same tiles by copies along
/// the rows, which the caches prefetch.
inline void copy_panel(const Operand& x, int64_t lane, int64_t lanes, int64_t k, int64_t depth,
                       uint16_t* out) {
  constexpr int64_t kGroup = 8 * kDepth;
  for (int64_t group = 0; group < depth; group += kGroup) {
    const int64_t end = std::min(group + kGroup, depth);
    for (int64_t i = 0; i < kPanel; ++i) {
      const uint16_t* row = x.data + (lane + i) * x.ld + k;
      for (int64_t at = group; at < end; at += kDepth) {
        const __mmask32 mask = i < lanes ? mask32(depth - at) : __mmask32{0};
        _mm512_store_si512(out + at * kPanel + i * kDepth,
                           _mm512_maskz_loadu_epi16(mask, row + at));
      }
    }
  }
}

/// sums[32, 32] (+)= `steps` steps of a panel of A times those of a panel of B; rows of `sums` are
/// `ld` elements apart.
inline void multiply(const uint16_t* a, const uint16_t* b, int64_t steps, float* sums, int64_t ld,
                     bool add) {
  const auto row = ld * static_cast<int64_t>(sizeof(float));
  float* lower = sums + kTile * ld;
  if (add) {
    _tile_loadd(0, sums, row);
    _tile_loadd(1, sums + kTile, row);
    _tile_loadd(2, lower, row);
    _tile_loadd(3, lower + kTile, row);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t step = 0; step < steps; ++step) {
    _tile_loadd(4, a, 64);
    _tile_loadd(6, b, 64);
    _tile_loadd(7, b + kStep / 2, 64);
    _tile_loadd(5, a + kStep / 2, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    a += kStep;
    b += kStep;
  }
  _tile_stored(0, sums, row);
  _tile_stored(1, sums + kTile, row);
  _tile_stored(2, lower, row);
  _tile_stored(3, lower + kTile, row);
}

inline __m512 load_row(const uint16_t* x, __mmask16 mask) {
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, x)), 16));
}

inline __m512 load_row(const float* c, __mmask16 mask) {
  return _mm512_maskz_loadu_ps(mask, c);
}

/// Returns 16 sums, plus a bias and C's old values where these are not null.
template <class Out>
__m512 finish(const float* sums, const uint16_t* bias, const Out* before, __mmask16 mask) {
  __m512 x = _mm512_load_ps(sums);
  if (bias != nullptr) x = _mm512_add_ps(x, load_row(bias, mask));
  return before == nullptr ? x : _mm512_add_ps(x, load_row(before, mask));
}

/// c[0, cols) (+)= one row of a block of sums + bias, which may be null; cols <= 32.
template <class Out>
void write_row(const float* sums, const uint16_t* bias, int64_t cols, bool add, Out* c) {
  const __mmask16 low_mask = mask16(cols);
  const __mmask16 high_mask = mask16(cols - kTile);
  const __m512 low = finish(sums, bias, add ? c : nullptr, low_mask);
  const __m512 high = finish(sums + kTile, bias == nullptr ? nullptr : bias + kTile,
                             add ? c + kTile : nullptr, high_mask);
  if constexpr (std::is_same_v<Out, float>) {
    _mm512_mask_storeu_ps(c, low_mask, low);
    _mm512_mask_storeu_ps(c + kTile, high_mask, high);
  } else {
    _mm512_mask_storeu_epi16(c, mask32(cols),
                             std::bit_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
  }
}

}  // namespace tokamak::cpu::amx

#endif
