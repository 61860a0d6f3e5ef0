#include <algorithm>
#include <vector>

#include "tokamak/gpu/amax.cuh"
#include "tokamak/gpu/dependent.cuh"
#include "tokamak/ops/attention/rope_gpu.cuh"

namespace tokamak::gpu {
namespace {

// N tokens, H heads, `half` pairs per head.

constexpr int kMaxPairs = 128;
constexpr int kAngles = 1024;
constexpr int kItems = 4 * kThreads;

__device__ inline void sine_and_cosine(float angle, float* s, float* c) {
  sincosf(angle, s, c);
}

__device__ inline void sine_and_cosine(double angle, double* s, double* c) {
  sincos(angle, s, c);
}

constexpr int kMostParts = 4;

// Puts the heads of up to kMostParts inputs side by side in each token's row of y.
template <class T>
struct Rotation {
  const T* x[kMostParts] = {};
  int end[kMostParts] = {};  // heads up to the end of each input
  int H = 0;                 // heads that a launch writes
  int turned = 0;            // the first heads, which are turned; the others are copied
  int row = 0;               // heads from a token to the next in y, and in a lone input
  const int32_t* positions = nullptr;
  T* y = nullptr;
  int64_t N = 0;
  int half = 0;
  int begin = 0;  // first pair that a launch turns
  int pairs = 0;
  int tokens = 0;            // per block
  double factor = 1.0;       // multiplies sines and cosines
  uint32_t* most = nullptr;  // the greatest magnitude of y, if wanted
  float frequency[kMaxPairs] = {};
};

// Returns the address of pair 0 of head `h` of token `n`.
template <class T, int kParts>
__device__ inline const T* head_of(const Rotation<T>& r, int64_t n, int h) {
  if (kParts == 1) return r.x[0] + (n * r.row + h) * 2 * r.half;
  const T* x = r.x[0];
  int begin = 0;
  int end = r.end[0];
#pragma unroll
  for (int p = 1; p < kParts; ++p) {
    if (h < end) break;
    x = r.x[p];
    begin = end;
    end = r.end[p];
  }
  return x + (n * (end - begin) + h - begin) * 2 * r.half;
}

// (a, b) -> (a cos - b sin, b cos + a sin) for a = x[n, h, i], b = x[n, h, i + half]. A block takes
// `tokens` tokens: it puts the sine and cosine of their angles into shared memory, then turns all
// their heads, K pairs per thread at a time. It makes two accesses per element.
template <class T, int K, int kParts>
__global__ void __launch_bounds__(kThreads) rotate(const __grid_constant__ Rotation<T> r) {
  using A = Accum<T>;
  wait_for_previous();
  let_next_start();
  __shared__ __align__(16) A sines[kAngles];
  __shared__ __align__(16) A cosines[kAngles];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * r.tokens;
  const int tokens = static_cast<int>(min(static_cast<int64_t>(r.tokens), r.N - first));
  for (int i = static_cast<int>(threadIdx.x); i < tokens * r.pairs; i += kThreads) {
    const int token = i / r.pairs;
    const auto position = static_cast<float>(r.positions[first + token]);
    // Rounds to fp32 here, as the angle is part of the model.
    const float angle = __fmul_rn(position, r.frequency[i - token * r.pairs]);
    sine_and_cosine(static_cast<A>(angle), sines + i, cosines + i);
    sines[i] *= static_cast<A>(r.factor);
    cosines[i] *= static_cast<A>(r.factor);
  }
  __syncthreads();
  const int packs = r.pairs / K;
  const int items = tokens * r.H * packs;
  uint32_t most = 0;
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x); i < items; i += kThreads) {
    const int head = i / packs;
    const int pair = (i - head * packs) * K;
    const int token = head / r.H;
    const int h = head - token * r.H;
    const int64_t to = ((first + token) * r.row + h) * 2 * r.half + r.begin + pair;
    const T* from = head_of<T, kParts>(r, first + token, h) + r.begin + pair;
    T as[K];
    T bs[K];
    load<K>(from, as);
    load<K>(from + r.half, bs);
    if (kParts == 1 || h < r.turned) {
      A s[K];
      A c[K];
      load<K>(sines + token * r.pairs + pair, s);
      load<K>(cosines + token * r.pairs + pair, c);
#pragma unroll
      for (int k = 0; k < K; ++k) {
        const A a = gpu::to<A>(as[k]);
        const A b = gpu::to<A>(bs[k]);
        as[k] = gpu::to<T>(a * c[k] - b * s[k]);
        bs[k] = gpu::to<T>(b * c[k] + a * s[k]);
      }
    }
    store<K>(r.y + to, as);
    store<K>(r.y + to + r.half, bs);
    if (r.most != nullptr) most = max(most, max(magnitude_of(as), magnitude_of(bs)));
  }
  if (r.most != nullptr) block_max(most, r.most);
}

// Returns enough tokens for a thread to turn a few packs with each angle, and few enough to keep
// all multiprocessors busy.
int tokens_a_block(int64_t N, int H, int pairs, int pack, int num_multiprocessors) {
  const int64_t items = std::max<int64_t>(1, int64_t{H} * pairs / pack);
  const int64_t wanted = std::min(kItems / items, N / (4 * num_multiprocessors));
  return static_cast<int>(std::clamp<int64_t>(wanted, 1, kAngles / pairs));
}

template <class T, int K>
void launch(Rotation<T> r, int num_multiprocessors, bool waits, DeviceStream stream) {
  r.tokens = tokens_a_block(r.N, r.H, r.pairs, K, num_multiprocessors);
  const auto blocks = static_cast<unsigned>((r.N + r.tokens - 1) / r.tokens);
  const bool is_one = r.H == r.turned && r.end[0] == r.end[kMostParts - 1];
  launch_dependent(waits, is_one ? rotate<T, K, 1> : rotate<T, K, kMostParts>, blocks, kThreads,
                   as_stream(stream), r);
}

// Turns the first `turned` inputs, or op.num_turned heads of a lone input.
Kernel prepare_parts(const Rope& op, int turned, const KernelTypes& types, const Setup& setup,
                     bool takes_maximum) {
  const int64_t N = types.in.back().numel();
  const auto half = static_cast<int>(types.in[0].dims[3] / 2);
  const int num_multiprocessors = setup.device->num_multiprocessors();
  const bool waits = waits_for_few(setup, N);
  const auto num_turned = static_cast<int>(op.num_turned);
  const double factor = op.scaling.attention_factor;
  std::vector<float> frequencies;
  for (const double f : rope_frequencies(2 * half, op.theta, op.scaling))
    frequencies.push_back(static_cast<float>(op.inverse ? -f : f));
  return by_float(types.out[0].dtype, [&]<class T>() -> Kernel {
    return [=](const KernelArgs& args) {
      uint32_t* const most = maximum_of(args, takes_maximum);
      clear_maxima(most, 1, args.stream);
      if (args.out[0].numel() == 0) return;
      Rotation<T> r{.positions = args.in.back().as<int32_t>(),
                    .y = args.out[0].as<T>(),
                    .N = N,
                    .half = half,
                    .factor = factor,
                    .most = most};
      bool is_even = half % Pack<T>::kSize == 0 && detail::is_aligned(r.y);
      for (size_t p = 0; p < kMostParts; ++p) {
        if (p + 1 < args.in.size()) {
          r.x[p] = args.in[p].as<T>();
          r.H += static_cast<int>(args.in[p].dim(2));
          is_even = is_even && detail::is_aligned(r.x[p]);
        }
        r.end[p] = r.H;
        if (static_cast<int>(p) < turned) r.turned = r.H;
      }
      r.row = r.H;
      if (num_turned > 0) r.turned = num_turned;
      // In place, the other heads need no copy, though their maximum may be wanted.
      if (num_turned > 0 && r.x[0] == r.y && !takes_maximum) r.H = num_turned;
      for (r.begin = 0; r.begin < half; r.begin += kMaxPairs) {
        r.pairs = std::min(kMaxPairs, half - r.begin);
        std::copy_n(frequencies.begin() + r.begin, r.pairs, r.frequency);
        is_even ? launch<T, Pack<T>::kSize>(r, num_multiprocessors, waits, args.stream)
                : launch<T, 1>(r, num_multiprocessors, waits, args.stream);
      }
    };
  });
}

}  // namespace

Kernel rope_kernel(const Rope& op, const KernelTypes& types, const Setup& setup,
                   bool takes_maximum) {
  return prepare_parts(op, 1, types, setup, takes_maximum);
}

Kernel rope_kernel(const RopeConcat& op, const KernelTypes& types, const Setup& setup,
                   bool takes_maximum) {
  return prepare_parts(op.rope, op.num_turned, types, setup, takes_maximum);
}

Kernel prepare(const Rope& op, const KernelTypes& types, const Setup& setup) {
  return rope_kernel(op, types, setup, false);
}

Kernel prepare(const RopeConcat& op, const KernelTypes& types, const Setup& setup) {
  return rope_kernel(op, types, setup, false);
}

}  // namespace tokamak::gpu
