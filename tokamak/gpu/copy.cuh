// Strided copies, many in one launch, by the widest accesses that all of them allow.
#pragma once

#include <vector>

#include "tokamak/gpu/dispatch.cuh"
#include "tokamak/gpu/divisor.cuh"

namespace tokamak::gpu {

/// Calls `f.operator()<Word>()` for the longest word that divides `bits`, the bitwise or of
/// addresses and extents in bytes.
template <class F>
void by_word(uint64_t bits, F&& f) {
  if (bits % 16 == 0) return f.template operator()<uint4>();
  if (bits % 8 == 0) return f.template operator()<uint2>();
  if (bits % 4 == 0) return f.template operator()<uint32_t>();
  if (bits % 2 == 0) return f.template operator()<uint16_t>();
  f.template operator()<uint8_t>();
}

inline uint64_t address(const void* p) {
  return reinterpret_cast<uintptr_t>(p);
}

/// Copies `count` runs of `bytes` from in[`in`] to the output, or zeros if in < 0; offsets and
/// strides are in bytes.
struct Copy {
  int in = 0;
  int64_t count = 1;
  int64_t bytes = 0;
  int64_t from = 0, from_stride = 0;
  int64_t to = 0, to_stride = 0;
};

namespace detail {

constexpr int kMoves = 4;

/// Moves one thread's words: f.load(i) and then f.store(i, word) for kMoves of i in [0, n).
template <class W, class F>
__device__ inline void move_words(int64_t n, const F& f) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kMoves * kThreads + threadIdx.x;
  W words[kMoves];
#pragma unroll
  for (int j = 0; j < kMoves; ++j) {
    if (first + j * kThreads < n) words[j] = f.load(first + j * kThreads);
  }
#pragma unroll
  for (int j = 0; j < kMoves; ++j) {
    if (first + j * kThreads < n) f.store(first + j * kThreads, words[j]);
  }
}

template <class W, class F>
__global__ void __launch_bounds__(kThreads) move(int64_t n, F f) {
  move_words<W>(n, f);
}

/// Returns how many blocks move n words, kMoves per thread.
inline unsigned blocks_to_move(int64_t n) {
  return blocks_for((n + kMoves - 1) / kMoves);
}

// A Copy in units of words.
template <class W>
struct Strided {
  const W* from;
  W* to;
  int64_t n;
  Divisor run;
  int64_t from_stride;
  int64_t to_stride;

  __device__ W load(int64_t i) const {
    if (from == nullptr) return W{};
    const int64_t r = run.quotient(i);
    return from[r * (from_stride - run.value()) + i];
  }

  __device__ void store(int64_t i, W word) const {
    to[run.quotient(i) * (to_stride - run.value()) + i] = word;
  }
};

constexpr int kCopies = 16;

template <class W>
struct Batch {
  Strided<W> copies[kCopies];
};

// Makes copy blockIdx.y, kMoves words per thread; reads and writes each byte once.
template <class W>
__global__ void __launch_bounds__(kThreads) copy_batch(const __grid_constant__ Batch<W> batch) {
  const Strided<W>& copy = batch.copies[blockIdx.y];
  move_words<W>(copy.n, copy);
}

template <class W>
void launch_batch(const Copy* copies, int num, const KernelArgs& args) {
  constexpr auto kSize = static_cast<int64_t>(sizeof(W));
  Batch<W> batch{};
  int64_t most = 0;
  for (int k = 0; k < num; ++k) {
    const Copy& c = copies[k];
    const auto* in = c.in < 0 ? nullptr : args.in[c.in].template as<std::byte>() + c.from;
    batch.copies[k] = {reinterpret_cast<const W*>(in),
                       reinterpret_cast<W*>(args.out[0].template as<std::byte>() + c.to),
                       c.count * c.bytes / kSize,
                       Divisor(c.bytes / kSize),
                       c.from_stride / kSize,
                       c.to_stride / kSize};
    most = std::max(most, batch.copies[k].n);
  }
  const dim3 grid(blocks_to_move(most), static_cast<unsigned>(num));
  copy_batch<W><<<grid, kThreads, 0, as_stream(args.stream)>>>(batch);
  TOK_CUDA_LAUNCHED();
}

}  // namespace detail

/// Calls f.load(i) and f.store(i, word) for each word i in [0, n).
template <class W, class F>
void launch_moves(int64_t n, DeviceStream stream, const F& f) {
  if (n == 0) return;
  detail::move<W><<<detail::blocks_to_move(n), kThreads, 0, as_stream(stream)>>>(n, f);
  TOK_CUDA_LAUNCHED();
}

/// Returns a kernel that makes all `copies`, in any order, to its only output.
inline Kernel copy_kernel(std::vector<Copy> copies) {
  std::erase_if(copies, [](const Copy& c) { return c.count == 0 || c.bytes == 0; });
  uint64_t bits = 0;
  for (const Copy& c : copies)
    bits |= static_cast<uint64_t>(c.bytes | c.from | c.from_stride | c.to | c.to_stride);
  return [copies = std::move(copies), bits](const KernelArgs& args) {
    uint64_t all = bits | address(args.out[0].data);
    for (const Tensor& in : args.in) all |= address(in.data);
    by_word(all, [&]<class W>() {
      const auto num = static_cast<int>(copies.size());
      for (int k = 0; k < num; k += detail::kCopies)
        detail::launch_batch<W>(copies.data() + k, std::min(detail::kCopies, num - k), args);
    });
  };
}

}  // namespace tokamak::gpu
