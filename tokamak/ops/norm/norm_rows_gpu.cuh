// How both kinds of norm reduce a row on a GPU and compute its elements.
#pragma once

#include <cstring>

#include "tokamak/gpu/row_sums.cuh"
#include "tokamak/gpu/rows.cuh"

namespace tokamak::gpu {

// D embed.

template <class A>
__device__ A reciprocal_root(A squares, int D, A eps) {
  return A{1} / sqrt(squares / static_cast<A>(D) + eps);
}

// A row of D elements, of which `group` threads hold P accesses each, in whole registers: each
// element of 2 bytes would take one.
template <int P, class T>
struct Held {
  using A = Accum<T>;
  static constexpr int K = Pack<T>::kSize;
  const uint4 (&row)[P];
  A first;
  int D;
  int group;

  // Calls f(x) for each element that this thread holds.
  template <class F>
  __device__ void each(const F& f) const {
    const int member = static_cast<int>(threadIdx.x) % group;
#pragma unroll
    for (int p = 0; p < P; ++p) {
      if ((p * group + member) * K >= D) continue;
      T x[K];
      memcpy(x, &row[p], sizeof(x));
#pragma unroll
      for (int k = 0; k < K; ++k) f(to<A>(x[k]));
    }
  }
};

/// If kZeroCentered, weights are 1 + w and y is rounded once.
template <class T, bool kZeroCentered = false>
struct RmsRow {
  using Element = T;
  using A = Accum<T>;
  static constexpr bool kHasBias = false;
  static constexpr bool kReadsFirst = false;

  struct Statistics {
    A r;  // 1 / sqrt(mean(x^2) + eps)
  };

  template <int P>
  static __device__ Statistics of_held(const Held<P, T>& held, A eps) {
    A squares[1] = {A{0}};
    held.each([&](A x) { squares[0] = fma(x, x, squares[0]); });
    group_sums(squares, held.group, 0);
    return {reciprocal_root(squares[0], held.D, eps)};
  }

  // `element(d)` returns x(d), which is valid only afterwards.
  template <class F, class X>
  static __device__ Statistics of_any(const F& element, const X&, int D, A eps) {
    A squares{0};
    for (int d = static_cast<int>(threadIdx.x); d < D; d += kThreads) {
      const A v = to<A>(element(d));
      squares += v * v;
    }
    return {reciprocal_root(block_sum(squares), D, eps)};
  }

  static __device__ T apply(const Statistics& s, T x, T w, T) {
    const A h = to<A>(x) * s.r;
    if constexpr (kZeroCentered) {
      return to<T>((A{1} + to<A>(w)) * h);
    } else {
      return to<T>(to<A>(w) * to<A>(to<T>(h)));
    }
  }
};

template <class T>
struct LayerRow {
  using Element = T;
  using A = Accum<T>;
  static constexpr bool kHasBias = true;
  static constexpr bool kReadsFirst = sizeof(T) == 2;

  struct Statistics {
    A mean, r;  // r = 1 / sqrt(variance + eps)
  };

  template <int P>
  static __device__ Statistics of_held(const Held<P, T>& held, A eps) {
    if constexpr (kReadsFirst) {
      return in_one_pass(held, eps);
    } else {
      return in_two_passes(held, eps);
    }
  }

  template <class F, class X>
  static __device__ Statistics of_any(const F& element, const X& x, int D, A eps) {
    const int first = static_cast<int>(threadIdx.x);
    A sum{0};
    for (int d = first; d < D; d += kThreads) sum += to<A>(element(d));
    const A mean = block_sum(sum) / static_cast<A>(D);
    A squares{0};
    for (int d = first; d < D; d += kThreads) {
      const A centred = to<A>(x(d)) - mean;
      squares += centred * centred;
    }
    return {mean, reciprocal_root(block_sum(squares), D, eps)};
  }

  static __device__ T apply(const Statistics& s, T x, T w, T b) {
    return to<T>((to<A>(x) - s.mean) * s.r * to<A>(w) + to<A>(b));
  }

 private:
  // Sums are over v = x - the row's first element: whatever the mean, the sum of v^2 is at most
  // D + 1 times that of (x - mean)^2, which follows from it to full bf16 precision.
  template <int P>
  static __device__ Statistics in_one_pass(const Held<P, T>& held, A eps) {
    A sums[2] = {A{0}, A{0}};
    held.each([&](A x) {
      const A v = x - held.first;
      sums[0] += v;
      sums[1] += v * v;
    });
    group_sums(sums, held.group, 0);
    const A mean = sums[0] / static_cast<A>(held.D);
    const A squares = sums[1] - mean * sums[0];
    return {held.first + mean, reciprocal_root(fmax(squares, A{0}), held.D, eps)};
  }

  template <int P>
  static __device__ Statistics in_two_passes(const Held<P, T>& held, A eps) {
    A mean[1] = {A{0}};
    held.each([&](A x) { mean[0] += x; });
    group_sums(mean, held.group, 0);
    mean[0] /= static_cast<A>(held.D);
    A squares[1] = {A{0}};
    held.each([&](A x) {
      const A centred = x - mean[0];
      squares[0] += centred * centred;
    });
    group_sums(squares, held.group, 1);
    return {mean[0], reciprocal_root(squares[0], held.D, eps)};
  }
};

// With h = x r: dx (+)= r (w dy - h mean(w dy h)), dw += dy h, where w may stand for 1 + w; see
// row_sums.cuh.
template <class T, bool kZeroCentered = false>
struct RmsGradient {
  using Element = T;
  using A = Accum<T>;
  static constexpr int kSums = 1;

  struct Statistics {
    A r, scale;
  };

  A eps;

  template <class Row>
  __device__ Statistics statistics(const Row& row, int D) const {
    A sums[2] = {A{0}, A{0}};
    row.each([&](A x, A w, A dy) {
      sums[0] = fma(x, x, sums[0]);
      sums[1] += weight(w) * dy * x;
    });
    row.sum(sums);
    const A r = reciprocal_root(sums[0], D, eps);
    return {r, sums[1] * r * r / static_cast<A>(D)};
  }

  __device__ A apply(const Statistics& s, A x, A w, A dy, A (&sums)[kSums]) const {
    sums[0] += dy * x * s.r;
    return s.r * (weight(w) * dy - x * s.scale);
  }

  __device__ T emit(const Statistics& s, T x, T w) const {
    return RmsRow<T, kZeroCentered>::apply({s.r}, x, w, T{});
  }

 private:
  static __device__ A weight(A w) { return kZeroCentered ? A{1} + w : w; }
};

// With h = (x - mean) r and g = w dy: dx (+)= r (g - mean(g) - h mean(g h)), dw += dy h, db += dy;
// see row_sums.cuh.
template <class T>
struct LayerGradient {
  using Element = T;
  using A = Accum<T>;
  static constexpr int kSums = 2;
  static constexpr int kRowSums = 4;

  struct Statistics {
    A mean, r, r_mean_g, r_mean_gh;
  };

  A eps;

  template <class Row>
  __device__ Statistics statistics(const Row& row, int D) const {
    if constexpr (sizeof(T) == 2) {
      A sums[kRowSums] = {A{0}, A{0}, A{0}, A{0}};
      row.each([&](A x, A w, A dy) { add(sums, row.first, x, w, dy); });
      row.sum(sums);
      return finish(sums, row.first, D);
    } else {
      return in_two_passes(row, D);
    }
  }

  // Adds up in one pass, as LayerRow does.
  __device__ void add(A (&sums)[kRowSums], A first, A x, A w, A dy) const {
    const A v = x - first;
    const A g = w * dy;
    sums[0] += v;
    sums[1] += v * v;
    sums[2] += g;
    sums[3] += g * v;
  }

  __device__ Statistics finish(const A (&sums)[kRowSums], A first, int D) const {
    const A share = A{1} / static_cast<A>(D);
    const A mean = sums[0] * share;
    const A r = rsqrt(fmax(sums[1] * share - mean * mean, A{0}) + eps);
    const A mean_gh = (sums[3] - mean * sums[2]) * share * r;
    return {first + mean, r, r * sums[2] * share, r * mean_gh};
  }

  __device__ A apply(const Statistics& s, A x, A w, A dy, A (&sums)[kSums]) const {
    const A h = (x - s.mean) * s.r;
    sums[0] += dy * h;
    sums[1] += dy;
    return s.r * (w * dy) - (s.r_mean_g + h * s.r_mean_gh);
  }

 private:
  template <class Row>
  __device__ Statistics in_two_passes(const Row& row, int D) const {
    A sum[1] = {A{0}};
    row.each([&](A x, A, A) { sum[0] += x; });
    row.sum(sum);
    const A mean = sum[0] / static_cast<A>(D);
    A sums[3] = {A{0}, A{0}, A{0}};
    row.each([&](A x, A w, A dy) {
      const A v = x - mean;
      const A g = w * dy;
      sums[0] += v * v;
      sums[1] += g;
      sums[2] += g * v;
    });
    row.sum(sums);
    const A r = reciprocal_root(sums[0], D, eps);
    return {mean, r, r * sums[1] / static_cast<A>(D), r * (sums[2] * r / static_cast<A>(D))};
  }
};

}  // namespace tokamak::gpu
