// Loops on the worker threads. Work is cut the same way at the same thread count, so sums keep
// their bits.
#pragma once

#include <algorithm>
#include <cstdint>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace tokamak::cpu {

inline int num_threads() {
#ifdef _OPENMP
  return omp_get_max_threads();
#else
  return 1;
#endif
}

/// Calls body(begin, end, part) for `num_threads()` contiguous parts of [0, n), or for one part
/// where n < `grain`.
template <class Body>
void parallel_ranges(int64_t n, int64_t grain, Body&& body) {
  const int64_t parts = std::clamp<int64_t>(n / std::max<int64_t>(grain, 1), 1, num_threads());
  if (parts == 1) {
    body(int64_t{0}, n, 0);
    return;
  }
#pragma omp parallel for schedule(static, 1)
  for (int64_t part = 0; part < parts; ++part) {
    body(n * part / parts, n * (part + 1) / parts, static_cast<int>(part));
  }
}

/// Calls body(i) for each i in [0, n), in any order and in vector lanes: for cheap elementwise
/// bodies. An output may share an input's storage.
template <class Body>
void parallel_for(int64_t n, Body&& body) {
  parallel_ranges(n, 8192, [body](int64_t begin, int64_t end, int) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) body(i);
  });
}

/// Calls body(row) for each row: for bodies that do a row's worth of work.
template <class Body>
void parallel_rows(int64_t rows, Body&& body) {
  parallel_ranges(rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) body(row);
  });
}

}  // namespace tokamak::cpu
