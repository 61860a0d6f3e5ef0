// Vectors, register-blocked matmuls and the layouts they read, for the fast attention kernels. One
// source serves every width: it uses the compiler's vector types, and AVX-512's bfloat16 dot
// product where the build has it.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "tokamak/core/dtype.h"
#include "tokamak/cpu/vec_math.h"

namespace tokamak::cpu::tile {

#if defined(__AVX512F__)
inline constexpr int64_t kLanes = 16;
inline constexpr int kTileRows = 6;
inline constexpr int kTileVectors = 4;
#elif defined(__AVX__)
inline constexpr int64_t kLanes = 8;
inline constexpr int kTileRows = 6;
inline constexpr int kTileVectors = 2;
#else
inline constexpr int64_t kLanes = 4;
inline constexpr int kTileRows = 6;
inline constexpr int kTileVectors = 2;
#endif

using Vec [[gnu::vector_size(kLanes * 4)]] = float;
using Ints [[gnu::vector_size(kLanes * 4)]] = int32_t;
using Halves [[gnu::vector_size(kLanes * 2)]] = uint16_t;
using Words [[gnu::vector_size(kLanes * 4)]] = uint32_t;
using Quad [[gnu::vector_size(16)]] = float;

/// Two neighbours along the summed dim of a matmul as bfloat16, the first in the low half.
struct Pair {
  uint32_t bits;
};

#if defined(__AVX512BF16__) && defined(__AVX512F__)
inline constexpr bool kHasPairs = true;
#else
inline constexpr bool kHasPairs = false;
#endif

/// The operand type of matmuls of T.
template <class T>
using Element = std::conditional_t<std::is_same_v<T, BF16> && kHasPairs, Pair, float>;

/// The number of values along the summed dim in one Element.
template <class E>
inline constexpr int64_t kPack = std::is_same_v<E, Pair> ? 2 : 1;

inline Vec load(const float* p) {
  Vec v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

inline void store(float* p, Vec v) {
  std::memcpy(p, &v, sizeof(v));
}

inline Words widen(Halves h) {
#if defined(__AVX512F__)
  return (Words)_mm512_maskz_cvtepu16_epi32(0xFFFF, (__m256i)h);
#elif defined(__AVX2__)
  return (Words)_mm256_cvtepu16_epi32((__m128i)h);
#else
  return __builtin_convertvector(h, Words);
#endif
}

inline Halves narrow(Words w) {
#if defined(__AVX512F__)
  return (Halves)_mm512_maskz_cvtepi32_epi16(0xFFFF, (__m512i)w);
#else
  return __builtin_convertvector(w, Halves);
#endif
}

inline Vec load(const BF16* p) {
  Halves h;
  std::memcpy(&h, p, sizeof(h));
  const Words w = widen(h) << 16;
  Vec v;
  std::memcpy(&v, &w, sizeof(v));
  return v;
}

/// Rounds as BF16 does, except that NaN only stays some NaN.
inline void store(BF16* p, Vec v) {
  Words w;
  std::memcpy(&w, &v, sizeof(v));
  const Words rounded = (w + 0x7FFFU + ((w >> 16) & 1U)) >> 16;
  const Words is_nan = (Words)(v != v);
  const Words kept = (w >> 16) | 0x40U;
  const Halves h = narrow((is_nan & kept) | (~is_nan & rounded));
  std::memcpy(static_cast<void*>(p), &h, sizeof(h));
}

/// to[d] = from[d] * scale, whatever the element types.
template <class From, class To>
void scale_row(const From* from, int64_t D, float scale, To* to) {
  int64_t d = 0;
  for (; d + kLanes <= D; d += kLanes) store(to + d, load(from + d) * scale);
  for (; d < D; ++d) to[d] = static_cast<To>(static_cast<float>(from[d]) * scale);
}

inline Vec broadcast(float x) {
  return x - Vec{};
}

/// The greater of each lane, b where one of both is NaN.
inline Vec max(Vec a, Vec b) {
#ifdef __AVX512F__
  return _mm512_maskz_max_ps(0xFFFF, a, b);
#else
  return a > b ? a : b;
#endif
}

inline Ints iota() {
  Ints v;
  for (int32_t i = 0; i < static_cast<int32_t>(kLanes); ++i) v[i] = i;
  return v;
}

/// Takes the lanes of `v` whose index is below `count`, and the others from `other`.
inline Vec first(Vec v, int64_t count, Vec other) {
  const Ints bound = static_cast<int32_t>(count) - Ints{};
  return iota() < bound ? v : other;
}

template <size_t kBy, size_t... kIndex>
Vec rotate(Vec v, std::index_sequence<kIndex...>) {
  return __builtin_shufflevector(v, v, ((kIndex + kBy) % kLanes)...);
}

/// Folds all lanes by `f`, in one fixed order.
template <size_t kHalf = kLanes / 2, class Fold>
float fold(Vec v, Fold&& f) {
  v = f(v, rotate<kHalf>(v, std::make_index_sequence<kLanes>()));
  if constexpr (kHalf > 1) {
    return fold<kHalf / 2>(v, f);
  } else {
    return v[0];
  }
}

inline float largest(Vec v) {
  return fold(v, [](Vec a, Vec b) { return max(a, b); });
}

inline float sum(Vec v) {
  return fold(v, [](Vec a, Vec b) { return a + b; });
}

template <class T>
float dot(const T* a, const T* b, int64_t D) {
  Vec total{};
  int64_t d = 0;
  for (; d + kLanes <= D; d += kLanes) total += load(a + d) * load(b + d);
  float rest = 0.0F;
  for (; d < D; ++d) rest += static_cast<float>(a[d]) * static_cast<float>(b[d]);
  return sum(total) + rest;
}

/// 2^x to 2 ulp; 2^-126 below, NaN for NaN. REQUIRES: x < 127.
inline Vec exp2(Vec x) {
  const Vec limited = max(broadcast(-126.0F), x);
  const Vec shifted = limited + 0x1.8p23F;
  const Vec f = limited - (shifted - 0x1.8p23F);
  Vec p = f * 1.545316294e-04F + 1.339086336e-03F;
  p = p * f + 9.618082557e-03F;
  p = p * f + 5.550357114e-02F;
  p = p * f + 2.402265076e-01F;
  p = p * f + 6.931471880e-01F;
  p = p * f + 1.0F;
  Words exponent;
  std::memcpy(&exponent, &shifted, sizeof(shifted));
  const Words bits = (exponent + 127U) << 23;
  Vec power;
  std::memcpy(&power, &bits, sizeof(bits));
  return p * power;
}

inline float exp2(float x) {
  return exp2(broadcast(x))[0];
}

/// Returns tanh x, as vec::tanh does.
inline Vec tanh(Vec x) {
  const Vec magnitude = max(x, -x);
  const Vec bound = broadcast(20.0F);
  const Vec held = magnitude > bound ? bound : magnitude;
  const Vec far = 1.0F - 2.0F / (exp2(held * 2.885390082F) + 1.0F);
  const Vec near = vec::tanh_series(x);
  const Vec zero{};
  return magnitude < broadcast(0.4F) ? near : (x < zero ? -far : far);
}

/// sum + a b, of one element a and a row of elements b.
inline Vec multiply_add(Vec sum, float a, const float* b) {
  return sum + a * load(b);
}

#if defined(__AVX512BF16__) && defined(__AVX512F__)
inline Words words_of(Pair x) {
  return x.bits - Words{};
}

inline Words words_of_bf16(Vec v) {
  return widen((Halves)_mm512_cvtneps_pbh(v));
}

inline Vec multiply_add(Vec sum, Pair a, const Pair* b) {
  Words row;
  std::memcpy(&row, b, sizeof(row));
  return _mm512_dpbf16_ps(sum, (__m512bh)words_of(a), (__m512bh)row);
}

/// Stores 32 floats as bfloat16.
inline void store_bf16(Pair* to, Vec low, Vec high) {
  const __m512bh v = _mm512_cvtne2ps_pbh(high, low);
  std::memcpy(to, &v, sizeof(v));
}

/// Stores pairs (a[i], b[i]).
inline void store_pairs(Pair* to, Vec a, Vec b) {
  const Words v = words_of_bf16(a) | (words_of_bf16(b) << 16);
  std::memcpy(to, &v, sizeof(v));
}
#else
inline Vec multiply_add(Vec sum, Pair, const Pair*) {
  return sum;
}

inline void store_bf16(Pair*, Vec, Vec) {}

inline void store_pairs(Pair*, Vec, Vec) {}
#endif

/// An operand read through strides, in elements.
template <class E>
struct Strided {
  const E* data = nullptr;
  int64_t row = 0;
  int64_t column = 0;
};

template <int kRows, int kVectors, class E>
inline void product_tile(int64_t K, Strided<E> a, const E* b, int64_t b_row, float* c,
                         int64_t c_row, bool add) {
  Vec sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 8
    for (int n = 0; n < kVectors; ++n) sums[m][n] = add ? load(c + m * c_row + n * kLanes) : Vec{};
  }
  for (int64_t k = 0; k < K; ++k) {
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const E a_m = a.data[m * a.row + k * a.column];
#pragma GCC unroll 8
      for (int n = 0; n < kVectors; ++n)
        sums[m][n] = multiply_add(sums[m][n], a_m, b + k * b_row + n * kLanes);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 8
    for (int n = 0; n < kVectors; ++n) store(c + m * c_row + n * kLanes, sums[m][n]);
  }
}

template <int kVectors, class E>
void product_columns(int64_t M, int64_t K, Strided<E> a, const E* b, int64_t b_row, float* c,
                     int64_t c_row, bool add) {
  static_assert(kTileRows == 6);
  for (; M >= kTileRows; M -= kTileRows) {
    product_tile<kTileRows, kVectors>(K, a, b, b_row, c, c_row, add);
    a.data += kTileRows * a.row;
    c += kTileRows * c_row;
  }
  if (M >= 4) {
    product_tile<4, kVectors>(K, a, b, b_row, c, c_row, add);
    a.data += 4 * a.row;
    c += 4 * c_row;
    M -= 4;
  }
  if (M >= 2) {
    product_tile<2, kVectors>(K, a, b, b_row, c, c_row, add);
    a.data += 2 * a.row;
    c += 2 * c_row;
    M -= 2;
  }
  if (M == 1) product_tile<1, kVectors>(K, a, b, b_row, c, c_row, add);
}

/// C[M, N] (+)= A[M, K] B[K, N], N a multiple of kLanes, K in elements.
template <class E>
void product(int64_t M, int64_t N, int64_t K, Strided<E> a, const E* b, int64_t b_row, float* c,
             int64_t c_row, bool add) {
  int64_t n = 0;
  for (; n + kTileVectors * kLanes <= N; n += kTileVectors * kLanes)
    product_columns<kTileVectors>(M, K, a, b + n, b_row, c + n, c_row, add);
  for (; n < N; n += kLanes) product_columns<1>(M, K, a, b + n, b_row, c + n, c_row, add);
}

/// How a block of `count` rows of D values, `stride` apart, lies in memory.
template <class T>
struct Rows {
  const T* data = nullptr;
  int64_t stride = 0;
  int64_t count = 0;
  int64_t D = 0;
};

/// to[r][D / kPack<E>]: the left operand of a matmul over D.
template <class T, class E>
void copy_rows(const Rows<T>& from, E* to) {
  for (int64_t r = 0; r < from.count; ++r) {
    const T* row = from.data + r * from.stride;
    if constexpr (std::is_same_v<E, Pair>) {
      std::memcpy(to + r * (from.D / 2), row, static_cast<size_t>(from.D) * 2);
    } else {
      scale_row(row, from.D, 1.0F, to + r * from.D);
    }
  }
}

/// to[r / kPack<E>][width]: the right operand of a matmul over rows; zeros up to `rows` and
/// `width`.
template <class T, class E>
void stack_rows(const Rows<T>& from, int64_t rows, int64_t width, E* to) {
  if (from.count < rows || from.D < width || kPack < E >> 1)
    std::memset(to, 0, static_cast<size_t>(rows / kPack<E> * width) * 4);
  for (int64_t r = 0; r < from.count; ++r) {
    const T* row = from.data + r * from.stride;
    E* out = to + r / kPack<E> * width;
    if constexpr (std::is_same_v<E, Pair>) {
      const int shift = r % 2 == 0 ? 0 : 16;
      for (int64_t d = 0; d < from.D; ++d)
        out[d].bits |= static_cast<uint32_t>(row[d].bits) << shift;
    } else {
      scale_row(row, from.D, 1.0F, out);
    }
  }
}

/// to[d][kWidth] = from[r][d], d < D, r < kWidth, both multiples of 4.
template <int64_t kWidth, class E>
void transpose(const E* from, int64_t D, E* to) {
  for (int64_t r = 0; r < kWidth; r += 4) {
    for (int64_t d = 0; d < D; d += 4) {
      Quad x[4];
      for (int64_t i = 0; i < 4; ++i) std::memcpy(&x[i], from + (r + i) * D + d, 16);
      const Quad a = __builtin_shufflevector(x[0], x[1], 0, 4, 1, 5);
      const Quad b = __builtin_shufflevector(x[2], x[3], 0, 4, 1, 5);
      const Quad e = __builtin_shufflevector(x[0], x[1], 2, 6, 3, 7);
      const Quad f = __builtin_shufflevector(x[2], x[3], 2, 6, 3, 7);
      x[0] = __builtin_shufflevector(a, b, 0, 1, 4, 5);
      x[1] = __builtin_shufflevector(a, b, 2, 3, 6, 7);
      x[2] = __builtin_shufflevector(e, f, 0, 1, 4, 5);
      x[3] = __builtin_shufflevector(e, f, 2, 3, 6, 7);
      for (int64_t i = 0; i < 4; ++i) std::memcpy(to + (d + i) * kWidth + r, &x[i], 16);
    }
  }
}

}  // namespace tokamak::cpu::tile
