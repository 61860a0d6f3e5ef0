#include "tokamak/gpu/copy.cuh"
#include "tokamak/gpu/dependent.cuh"
#include "tokamak/ops/attention/cache_append.h"

namespace tokamak::gpu {
namespace {

// B samples, T slots, S new tokens.

// cache[b, position[b] + s] = added[b, s], or all at position[0]; each byte of `added` is read and
// written once. A position outside the cache stops the program.
template <class W>
struct Append {
  const W* added;
  const int32_t* position;
  W* cache;
  int64_t T;
  int64_t S;
  int64_t slot;       // words
  Divisor of_sample;  // S slots
  bool is_same;       // position

  __device__ W load(int64_t i) const { return added[i]; }

  __device__ void store(int64_t i, W word) const {
    const int64_t b = of_sample.quotient(i);
    const int64_t at = position[is_same ? 0 : b];
    if (at < 0 || at + S > T) __trap();
    cache[b * (T - S) * slot + at * slot + i] = word;
  }

  __device__ void operator()(int64_t i) const { store(i, load(i)); }
};

}  // namespace

Kernel prepare(const CacheAppend&, const KernelTypes& types, const Setup& setup) {
  const int64_t T = types.in[0].dims[1];
  const int64_t S = types.in[1].dims[1];
  const int64_t slot_bytes = types.in[0].dims[2] * types.in[0].dims[3] * size_of(types.in[0].dtype);
  const int64_t bytes = types.in[1].bytes();
  const bool waits = waits_for_few(setup, types.in[1].dims[0] * S);
  const bool is_same = types.in[2].numel() == 1;
  return [=](const KernelArgs& args) {
    if (bytes == 0) return;
    const void* added = args.in[1].data;
    const void* cache = args.out[0].data;
    by_word(static_cast<uint64_t>(slot_bytes) | address(added) | address(cache), [&]<class W>() {
      constexpr auto kSize = static_cast<int64_t>(sizeof(W));
      const int64_t slot = slot_bytes / kSize;
      const Append<W> append{args.in[1].as<W>(),
                             args.in[2].as<int32_t>(),
                             args.out[0].as<W>(),
                             T,
                             S,
                             slot,
                             Divisor(S * slot),
                             is_same};
      if (waits) return launch_for_few(bytes / kSize, args.stream, append);
      launch_moves<W>(bytes / kSize, args.stream, append);
    });
  };
}

}  // namespace tokamak::gpu
