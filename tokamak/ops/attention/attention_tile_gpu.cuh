// Tiles of queries and keys in shared memory, their matmuls and their softmax, for the attention
// kernels, by plain arithmetic that every GPU has, in the types of Accum.
#pragma once

#include "tokamak/gpu/dispatch.cuh"
#include "tokamak/ops/attention/attention.h"
#include "tokamak/ops/elementwise/dropout.h"

namespace tokamak::gpu {

/// Letters are those of attention.h. G query heads read one key-value head, with S G queries in
/// all, which are called rows: row r is query r / G of head r % G of the group, so that a tile of
/// rows shares keys.
struct Problem {
  int64_t B = 0, S = 0, T = 0, H = 0, K = 0, D = 0, G = 0;
  int64_t q_step = 0, kv_step = 0;  ///< elements from one token's heads to the next's
  double scale = 1.0;
  bool is_causal = true;
  int64_t window = 0;  ///< the most keys that a query sees; 0: any number
  double cap = 0.0;    ///< of scores; 0: none
  bool drops = false;
  uint64_t key = 0;
  uint32_t threshold = 0;
  double kept = 1.0;  ///< dropout's factor for kept elements
  int64_t first_head = 0, first_query = 0, first_key = 0;
  const int32_t* lengths = nullptr;  ///< null: all keys are valid
  bool one_length = false;
  const int64_t* samples = nullptr;

  /// Returns the number of valid keys of sample b.
  __device__ int64_t length(int64_t b) const {
    if (lengths == nullptr) return T;
    const int64_t n = lengths[one_length ? 0 : b];
    return n < 0 ? 0 : (n < T ? n : T);
  }

  /// Returns the first key that query i does not see.
  __device__ int64_t end(int64_t length, int64_t i) const {
    if (!is_causal) return length;
    const int64_t n = length - S + i + 1;
    return n < 0 ? 0 : (n < length ? n : length);
  }
};

/// Returns the first key that a query sees which does not see key `end`.
__device__ inline int64_t begin_of(const Problem& p, int64_t end) {
  return p.window > 0 && end > p.window ? end - p.window : 0;
}

/// Returns the score of a query and a key with this product, as the softmax takes it.
template <bool kCaps, class A>
__device__ inline A score_of(const Problem& p, A product) {
  const A x = static_cast<A>(p.scale) * product;
  if constexpr (!kCaps) return x;
  const A cap = static_cast<A>(p.cap);
  return cap * tanh(x / cap);
}

/// Returns the derivative of a score by the uncapped one.
template <class A>
__device__ inline A slope_of(const Problem& p, A score) {
  const A share = score / static_cast<A>(p.cap);
  return A{1} - share * share;
}

/// Values [B, H, S], float or double whatever the operands are.
struct Statistics {
  const void* data = nullptr;
  bool is_double = false;

  template <class A>
  __device__ A at(int64_t i) const {
    return is_double ? static_cast<A>(static_cast<const double*>(data)[i])
                     : static_cast<A>(static_cast<const float*>(data)[i]);
  }
};

// A block's threads form 8 rows of 16. Of a matmul's result, thread (y, x) has rows y, y + 8, ..
// and columns x, x + 16, .. (keys), or the 16-byte accesses x, x + 16, .. (head dims).
inline constexpr int kTileRows = 8;
inline constexpr int kTileColumns = 16;
inline constexpr int kTileThreads = kTileRows * kTileColumns;

/// Elements of a 16-byte access.
template <class A>
inline constexpr int kVec = 16 / static_cast<int>(sizeof(A));

/// Elements from one token to the next in shared memory: 8 tokens' accesses meet all banks.
template <class A, int kD>
inline constexpr int kTokenStride = kD + kVec<A>;

/// Elements from one row of scores to the next: two rows meet all banks.
template <int kN>
inline constexpr int kScoreStride = kN % 32 == 0 ? kN + 16 : kN;

template <class A, int kD, int kN>
inline constexpr int kTokensSize = kN* kTokenStride<A, kD>;

template <int kN>
inline constexpr int kScoresSize = kN* kScoreStride<kN>;

template <class A, int kD, int kN>
inline constexpr int kForwardBytes = static_cast<int>(sizeof(A)) *
                                     (2 * kTokensSize<A, kD, kN> + kScoresSize<kN>);
template <class A, int kD, int kN>
inline constexpr int kBackwardBytes = 2 * kForwardBytes<A, kD, kN>;

/// Returns the most of 64, 32 and 16, up to `wanted`, rows and keys of which a block on this
/// vendor's GPUs can hold `sets` sets beside Rows; 0 if it can hold none.
template <class A, int kD>
constexpr int tile_that_fits(int wanted, int sets) {
  constexpr int kBytes = kSharedBytes - 4096;
  if (wanted == 64 && sets * kForwardBytes<A, kD, 64> <= kBytes) return 64;
  if (wanted >= 32 && sets * kForwardBytes<A, kD, 32> <= kBytes) return 32;
  return sets * kForwardBytes<A, kD, 16> <= kBytes ? 16 : 0;
}

/// The number of rows, and of keys, of a tile.
template <class A, int kD>
inline constexpr int kForwardTile =
    tile_that_fits<A, kD>(kD * sizeof(A) <= 512 ? 64 : (kD * sizeof(A) <= 1024 ? 32 : 16), 1);
template <class A, int kD>
inline constexpr int kBackwardTile = tile_that_fits<A, kD>(kD * sizeof(A) <= 512 ? 32 : 16, 2);

namespace detail {

__device__ inline int tile_row() {
  return static_cast<int>(threadIdx.x) / kTileColumns;
}

__device__ inline int tile_column() {
  return static_cast<int>(threadIdx.x) % kTileColumns;
}

__device__ inline float exp_of(float x) {
  return expf(x);
}

__device__ inline double exp_of(double x) {
  return exp(x);
}

__device__ inline float log_of(float x) {
  return logf(x);
}

__device__ inline double log_of(double x) {
  return log(x);
}

// Returns the maximum over the 16 threads of a row to all of them.
template <class A>
__device__ inline A row_max(A x) {
#pragma unroll
  for (int d = kTileColumns / 2; d > 0; d /= 2) {
    const A other = __shfl_xor_sync(0xFFFFFFFFU, x, d);
    x = other > x ? other : x;
  }
  return x;
}

template <class A>
__device__ inline A row_sum(A x) {
#pragma unroll
  for (int d = kTileColumns / 2; d > 0; d /= 2) x += __shfl_xor_sync(0xFFFFFFFFU, x, d);
  return x;
}

// A block's sample, key-value head and tile: all blocks of one tile come before the next tile's.
struct Place {
  int64_t b, kv, tile;

  __device__ explicit Place(const Problem& p) {
    const int64_t heads = p.B * p.K;
    const int64_t head = static_cast<int64_t>(blockIdx.x) % heads;
    tile = static_cast<int64_t>(blockIdx.x) / heads;
    b = head / p.K;
    kv = head % p.K;
  }
};

// The rows of a tile, described in shared memory. REQUIRES: kN <= kTileThreads.
template <class A, int kN>
struct Rows {
  int64_t q_at[kN];       // of its first element in q
  int64_t o_at[kN];       // of its first element in o
  int64_t statistic[kN];  // of its statistic in lse
  int64_t begin[kN];      // first key that it sees
  int64_t end[kN];        // first key that it does not see; 0 past the last row
  uint64_t element[kN];   // attention_element of key 0
  A lse[kN];              // backward only, as delta
  A delta[kN];

  __device__ bool sees(int row, int64_t key) const { return key >= begin[row] && key < end[row]; }

  __device__ void fill(const Problem& p, const Place& where, int64_t first) {
    const int n = static_cast<int>(threadIdx.x);
    if (n >= kN) return;
    const int64_t r = first + n;
    const int64_t i = r / p.G;
    const int64_t h = where.kv * p.G + r % p.G;
    const bool is_row = i < p.S;
    q_at[n] = (where.b * p.S + i) * p.q_step + h * p.D;
    o_at[n] = ((where.b * p.S + i) * p.H + h) * p.D;
    statistic[n] = (where.b * p.H + h) * p.S + i;
    end[n] = is_row ? p.end(p.length(where.b), i) : 0;
    begin[n] = begin_of(p, end[n]);
    element[n] = attention_element(p.first_head + h, p.first_query + i, 0);
  }

  __device__ void fill(const Problem& p, const Place& where, int64_t first, const Statistics& all,
                       const A* deltas) {
    fill(p, where, first);
    const int n = static_cast<int>(threadIdx.x);
    if (n >= kN) return;
    const bool is_row = first + n < p.S * p.G;
    lse[n] = is_row ? all.at<A>(statistic[n]) : A{0};
    delta[n] = is_row ? deltas[statistic[n]] : A{0};
  }
};

// into[n] = token n for the first `count` tokens, with zeros to kD; else zeros. Token n begins at
// x + at(n).
template <int kD, int kN, class T, class A, class At>
__device__ inline void load_tokens(const T* x, int64_t D, int64_t count, A* into, const At& at) {
#pragma unroll 8
  for (int e = static_cast<int>(threadIdx.x); e < kN * kD; e += kTileThreads) {
    const int n = e / kD;
    const int d = e % kD;
    const bool is_there = n < count && d < D;
    into[n * kTokenStride<A, kD> + d] = is_there ? to<A>(x[at(n) + d]) : A{0};
  }
}

// Loads rows from `first` on; `at` is their offsets in q or in o.
template <int kD, int kN, class T, class A>
__device__ inline void load_rows(const T* x, const Problem& p, const int64_t (&at)[kN],
                                 int64_t first, A* into) {
  load_tokens<kD, kN>(x, p.D, p.S * p.G - first, into, [&](int n) { return at[n]; });
}

// Loads keys from `first` to before `end`.
template <int kD, int kN, class T, class A>
__device__ inline void load_keys(const T* x, const Problem& p, const Place& where, int64_t first,
                                 int64_t end, A* into) {
  const T* from = x + (where.b * p.T + first) * p.kv_step + where.kv * p.D;
  load_tokens<kD, kN>(from, p.D, end - first, into, [&](int n) { return n * p.kv_step; });
}

// out[i][j] = a[row i] . b[column j]
template <class A, int kD, int kN>
__device__ inline void dot_products(const A* a, const A* b,
                                    A (&out)[kN / kTileRows][kN / kTileColumns]) {
  constexpr int kStride = kTokenStride<A, kD>;
  a += tile_row() * kStride;
  b += tile_column() * kStride;
#pragma unroll
  for (auto& row : out) {
#pragma unroll
    for (A& x : row) x = A{0};
  }
#pragma unroll 2
  for (int d = 0; d < kD; d += kVec<A>) {
    A y[kN / kTileColumns][kVec<A>];
#pragma unroll
    for (int j = 0; j < kN / kTileColumns; ++j)
      load<kVec<A>>(b + j * kTileColumns * kStride + d, y[j]);
#pragma unroll
    for (int i = 0; i < kN / kTileRows; ++i) {
      A x[kVec<A>];
      load<kVec<A>>(a + i * kTileRows * kStride + d, x);
#pragma unroll
      for (int j = 0; j < kN / kTileColumns; ++j) {
#pragma unroll
        for (int e = 0; e < kVec<A>; ++e) out[i][j] += x[e] * y[j][e];
      }
    }
  }
}

// A thread's part of [kN, kD] sums over the tokens of a tile.
template <class A, int kD, int kN>
struct Sums {
  static constexpr int kParts = kD / (kTileColumns * kVec<A>);
  A v[kN / kTileRows][kParts][kVec<A>] = {};

  // v[row i] += sum_t w[i, t] x[t]; w[i, t] lies at i * row_step + t * token_step.
  __device__ void add(const A* w, int row_step, int token_step, const A* x) {
    w += tile_row() * row_step;
    x += tile_column() * kVec<A>;
#pragma unroll 2
    for (int t = 0; t < kN; ++t) {
      A y[kParts][kVec<A>];
#pragma unroll
      for (int m = 0; m < kParts; ++m)
        load<kVec<A>>(x + t * kTokenStride<A, kD> + m * kTileColumns * kVec<A>, y[m]);
#pragma unroll
      for (int i = 0; i < kN / kTileRows; ++i) {
        const A factor = w[i * kTileRows * row_step + t * token_step];
#pragma unroll
        for (int m = 0; m < kParts; ++m) {
#pragma unroll
          for (int e = 0; e < kVec<A>; ++e) v[i][m][e] += factor * y[m][e];
        }
      }
    }
  }

  __device__ void scale(int i, A factor) {
#pragma unroll
    for (int m = 0; m < kParts; ++m) {
#pragma unroll
      for (int e = 0; e < kVec<A>; ++e) v[i][m][e] *= factor;
    }
  }

  // Stores row i to the D elements at `to_row`.
  template <class T>
  __device__ void store(int i, int64_t D, T* to_row) const {
#pragma unroll
    for (int m = 0; m < kParts; ++m) {
#pragma unroll
      for (int e = 0; e < kVec<A>; ++e) {
        const int d = (m * kTileColumns + tile_column()) * kVec<A> + e;
        if (d < D) to_row[d] = to<T>(v[i][m][e]);
      }
    }
  }
};

// Returns the factor that dropout multiplies P by.
template <class A>
__device__ inline A kept(const Problem& p, uint64_t sample, uint64_t row_element, int64_t key) {
  const uint64_t e = row_element | static_cast<uint64_t>(p.first_key + key);
  const auto words = philox(p.key, e / 4, sample);
  const uint32_t low = (e & 1U) != 0 ? words[1] : words[0];
  const uint32_t high = (e & 1U) != 0 ? words[3] : words[2];
  return ((e & 2U) != 0 ? high : low) >= p.threshold ? static_cast<A>(p.kept) : A{0};
}

__device__ inline uint64_t sample_of(const Problem& p, int64_t b) {
  return p.drops ? static_cast<uint64_t>(p.samples[b]) : 0;
}

// The tiles of a backward block in shared memory.
template <class A, int kD, int kN>
struct GradTiles {
  A *q, *dy, *k, *v, *p, *ds;

  __device__ explicit GradTiles(A* shared)
      : q(shared),
        dy(q + kTokensSize<A, kD, kN>),
        k(dy + kTokensSize<A, kD, kN>),
        v(k + kTokensSize<A, kD, kN>),
        p(v + kTokensSize<A, kD, kN>),
        ds(p + kScoresSize<kN>) {}

  // p = kept exp(scale q . k - lse), ds = scale p (kept dy . v - delta), 0 where not seen. With a
  // cap, p is of the capped score and ds times its slope.
  template <bool kCaps>
  __device__ void scores(const Problem& problem, const Rows<A, kN>& rows, uint64_t sample,
                         int64_t first_key) const {
    A s[kN / kTileRows][kN / kTileColumns];
    A dp[kN / kTileRows][kN / kTileColumns];
    dot_products<A, kD, kN>(q, k, s);
    dot_products<A, kD, kN>(dy, v, dp);
    const A scale = static_cast<A>(problem.scale);
#pragma unroll
    for (int i = 0; i < kN / kTileRows; ++i) {
      const int row = tile_row() + i * kTileRows;
#pragma unroll
      for (int j = 0; j < kN / kTileColumns; ++j) {
        const int column = tile_column() + j * kTileColumns;
        A weight{0};
        A slope{0};
        if (rows.sees(row, first_key + column)) {
          const A keep = problem.drops
                             ? kept<A>(problem, sample, rows.element[row], first_key + column)
                             : A{1};
          const A score = score_of<kCaps>(problem, s[i][j]);
          weight = exp_of(score - rows.lse[row]);
          slope = scale * weight * (keep * dp[i][j] - rows.delta[row]);
          if constexpr (kCaps) slope *= slope_of(problem, score);
          weight *= keep;
        }
        p[row * kScoreStride<kN> + column] = weight;
        ds[row * kScoreStride<kN> + column] = slope;
      }
    }
  }
};

// The softmax of a tile's rows so far: exp(lse) = total exp(largest).
template <class A, int kN>
struct Softmax {
  A largest[kN / kTileRows];
  A total[kN / kTileRows];

  __device__ Softmax() {
#pragma unroll
    for (int i = 0; i < kN / kTileRows; ++i) {
      largest[i] = -std::numeric_limits<A>::infinity();
      total[i] = A{0};
    }
  }

  // Takes the scaled scores x of row i's next keys, -inf where not seen, and leaves their weights
  // in x. Returns the factor that earlier weights must be multiplied by.
  __device__ A add(int i, A (&x)[kN / kTileColumns]) {
    A most = x[0];
#pragma unroll
    for (int j = 1; j < kN / kTileColumns; ++j) most = x[j] > most ? x[j] : most;
    most = row_max(most);
    most = largest[i] > most ? largest[i] : most;
    // All threads of a warp must reach row_sum, also those of rows that see no key yet.
    const A base = most == -std::numeric_limits<A>::infinity() ? A{0} : most;
    const A factor = exp_of(largest[i] - base);
    A sum{0};
#pragma unroll
    for (A& weight : x) sum += weight = exp_of(weight - base);
    largest[i] = most;
    total[i] = total[i] * factor + row_sum(sum);
    return factor;
  }
};

template <class A>
__device__ inline A* shared_tiles() {
  extern __shared__ __align__(16) unsigned char bytes[];
  return reinterpret_cast<A*>(bytes);
}

}  // namespace detail

}  // namespace tokamak::gpu
