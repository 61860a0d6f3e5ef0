// Loops of one block over contiguous elements by 16-byte accesses, from any element on.
#pragma once

#include <cstring>

#include "tokamak/gpu/dispatch.cuh"

namespace tokamak::gpu {

/// n < 2^31 elements from p on: `head` of them before the first 16-byte boundary, then `packs`
/// accesses, then fewer than one access.
struct Span {
  int head = 0;
  int packs = 0;
  int tail = 0;

  template <class T>
  __device__ Span(const T* p, int n) {
    constexpr int K = Pack<T>::kSize;
    const auto past = static_cast<int>(reinterpret_cast<uintptr_t>(p) % 16 / sizeof(T));
    head = (K - past) % K;
    if (head > n) head = n;
    packs = (n - head) / K;
    tail = n - head - packs * K;
  }
};

/// Calls body(values) for the n elements from p on, in arrays of one element or of kUnroll accesses
/// in flight together; `none` fills places past the end. The block's threads share the elements.
template <int kUnroll, class T, class Body>
__device__ inline void for_values(const T* p, int n, T none, Body&& body) {
  constexpr int K = Pack<T>::kSize;
  const Span span(p, n);
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  if (thread < span.head) {
    const T one[1] = {p[thread]};
    body(one);
  }
  const T* packed = p + span.head;
  for (int i = thread; i < span.packs; i += kUnroll * threads) {
    uint4 raw[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int pack = i + u * threads;
      if (pack < span.packs) raw[u] = *reinterpret_cast<const uint4*>(packed + pack * K);
    }
    T values[kUnroll * K];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      memcpy(values + u * K, &raw[u], sizeof(uint4));
      if (i + u * threads < span.packs) continue;
#pragma unroll
      for (int k = 0; k < K; ++k) values[u * K + k] = none;
    }
    body(values);
  }
  if (thread < span.tail) {
    const T one[1] = {packed[span.packs * K + thread]};
    body(one);
  }
}

}  // namespace tokamak::gpu
