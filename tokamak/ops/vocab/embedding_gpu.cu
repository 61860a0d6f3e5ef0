#include "tokamak/gpu/copy.cuh"
#include "tokamak/ops/vocab/embedding.h"
#include "tokamak/ops/vocab/embedding_layout.h"

namespace tokamak::gpu {
namespace {

// N tokens, V vocabulary, D embed.

// y[n] = table[tokens[n] - first_row], or 0, word by word; each word is read and written once.
template <class W>
struct Gather {
  const int32_t* tokens;
  const W* table;
  W* y;
  int64_t V;
  int64_t first_row;
  Divisor row_words;

  __device__ W load(int64_t i) const {
    const int64_t n = row_words.quotient(i);
    const int64_t row = tokens[n] - first_row;
    return row >= 0 && row < V ? table[(row - n) * row_words.value() + i] : W{};
  }

  __device__ void store(int64_t i, W word) const { y[i] = word; }
};

struct Piece {
  int32_t row;
  int32_t first;  // of `order`
  int32_t num;
  int32_t sum;  // row of the workspace's sums, or -1: the row's only piece
};

struct HeavyRow {
  int32_t row;
  int32_t first_sum;
  int32_t num_sums;
  int32_t unused;
};

// The lengths of the lists. The two counts that most rows increase share a word.
struct Cursors {
  unsigned long long members_and_pieces;  // members below bit 32
  int32_t sums;
  int32_t heavy;
};

// The tokens of each row of the table. Rows take places in the lists in any order, but within a row
// tokens are in order, and no sum depends on more than that.
struct Lists {
  const int32_t* tokens;
  int64_t N;
  int64_t V;
  int64_t first_row;
  int32_t* counts;
  Cursors* cursors;
  int32_t* starts;
  int32_t* tickets;
  int32_t* members;
  int32_t* order;
  Piece* pieces;
  HeavyRow* heavy;

  // Returns the row of token n, or -1 if it is not in this table.
  __device__ int64_t row_of(int64_t n) const {
    const int64_t row = tokens[n] - first_row;
    return row >= 0 && row < V ? row : -1;
  }
};

struct Count {
  Lists lists;

  __device__ void operator()(int64_t n) const {
    const int64_t row = lists.row_of(n);
    if (row >= 0) lists.tickets[n] = atomicAdd(lists.counts + row, 1);
  }
};

__device__ inline void add_pieces(const Lists& lists, int64_t row, int32_t count, int32_t first,
                                  int32_t first_piece, int32_t num) {
  constexpr auto kPiece = static_cast<int32_t>(kEmbeddingPiece);
  int32_t sum = -1;
  if (num > 1) {
    sum = atomicAdd(&lists.cursors->sums, num);
    lists.heavy[atomicAdd(&lists.cursors->heavy, 1)] = {static_cast<int32_t>(row), sum, num, 0};
  }
  for (int32_t k = 0; k < num; ++k) {
    lists.pieces[first_piece + k] = {static_cast<int32_t>(row), first + k * kPiece,
                                     min(kPiece, count - k * kPiece), num > 1 ? sum + k : -1};
  }
}

// Each thread allocates places for a row's tokens and pieces, for all rows of a warp at once.
__global__ void __launch_bounds__(kThreads) allocate(Lists lists) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int32_t count = row < lists.V ? lists.counts[row] : 0;
  const auto num = static_cast<int32_t>((count + kEmbeddingPiece - 1) / kEmbeddingPiece);
  const unsigned long long own =
      static_cast<unsigned long long>(num) << 32U | static_cast<uint32_t>(count);
  unsigned long long up_to = own;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const unsigned long long left = __shfl_up_sync(0xFFFFFFFFU, up_to, d);
    if (lane >= d) up_to += left;
  }
  unsigned long long begin = 0;
  if (lane == 31 && up_to > 0) begin = atomicAdd(&lists.cursors->members_and_pieces, up_to);
  begin = __shfl_sync(0xFFFFFFFFU, begin, 31) + up_to - own;
  if (count == 0) return;
  const auto first = static_cast<int32_t>(begin & 0xFFFFFFFFU);
  lists.starts[row] = first;
  add_pieces(lists, row, count, first, static_cast<int32_t>(begin >> 32U), num);
}

struct Place {
  Lists lists;

  __device__ void operator()(int64_t n) const {
    const int64_t row = lists.row_of(n);
    if (row >= 0) lists.members[lists.starts[row] + lists.tickets[n]] = static_cast<int32_t>(n);
  }
};

// Each warp places one token: its place in its row is the number of the row's tokens before it.
__global__ void __launch_bounds__(kThreads) sort(Lists lists) {
  const int64_t n = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (n >= lists.N) return;
  const int64_t row = lists.row_of(n);
  if (row < 0) return;
  const int32_t count = lists.counts[row];
  const int32_t start = lists.starts[row];
  int32_t before = 0;
#pragma unroll 4
  for (int32_t i = lane; i < count; i += 32) before += lists.members[start + i] < n ? 1 : 0;
#pragma unroll
  for (int d = 16; d > 0; d /= 2) before += __shfl_xor_sync(0xFFFFFFFFU, before, d);
  if (lane == 0) lists.order[start + before] = static_cast<int32_t>(n);
}

// Zeroes rows that have no token; one store per element.
struct ClearUnused {
  const int32_t* counts;
  uint4* table;
  Divisor row_words;

  __device__ bool load(int64_t i) const { return counts[row_words.quotient(i)] > 0; }

  __device__ void store(int64_t i, bool is_used) const {
    if (!is_used) table[i] = uint4{};
  }
};

template <class A>
struct ClearUnusedElement {
  const int32_t* counts;
  A* table;
  Divisor D;

  __device__ void operator()(int64_t i) const {
    if (counts[D.quotient(i)] == 0) table[i] = A{0};
  }
};

template <class T>
struct Sums {
  Lists lists;
  const T* dy;
  Accum<T>* table;
  Accum<T>* sums;
  int64_t D;
  bool accumulate;
};

// to (+)= sum; K columns.
template <int K, class A>
__device__ inline void put(A* to, bool adds, A (&sum)[K]) {
  if (adds) {
    A held[K];
    load<K>(to, held);
#pragma unroll
    for (int k = 0; k < K; ++k) sum[k] += held[k];
  }
  store<K>(to, sum);
}

// Sums a piece's rows of dy in token order, into the table if the piece is all of a row, else into
// the workspace. Blocks of one blockIdx.y share columns and take every gridDim.x-th piece; a thread
// takes K columns. Each row of dy is read once, each row of the table is written once.
template <class T, int K>
__global__ void __launch_bounds__(kThreads) sum_pieces(Sums<T> s) {
  using A = Accum<T>;
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * K;
  if (column >= s.D) return;
  const auto num = static_cast<int64_t>(s.lists.cursors->members_and_pieces >> 32U);
  for (int64_t p = blockIdx.x; p < num; p += gridDim.x) {
    const Piece piece = s.lists.pieces[p];
    const int32_t* order = s.lists.order + piece.first;
    A sum[K] = {};
#pragma unroll 4
    for (int32_t i = 0; i < piece.num; ++i) {
      T x[K];
      load<K>(s.dy + order[i] * s.D + column, x);
#pragma unroll
      for (int k = 0; k < K; ++k) sum[k] += to<A>(x[k]);
    }
    if (piece.sum < 0) {
      put<K>(s.table + piece.row * s.D + column, s.accumulate, sum);
    } else {
      store<K>(s.sums + piece.sum * s.D + column, sum);
    }
  }
}

// Adds the pieces of heavy rows in order; one column per thread.
template <class T>
__global__ void __launch_bounds__(kThreads) add_heavy(Sums<T> s) {
  using A = Accum<T>;
  const int64_t column = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (column >= s.D) return;
  const int64_t num = s.lists.cursors->heavy;
  for (int64_t h = blockIdx.x; h < num; h += gridDim.x) {
    const HeavyRow heavy = s.lists.heavy[h];
    const A* from = s.sums + heavy.first_sum * s.D + column;
    A sum[1] = {};
#pragma unroll 8
    for (int32_t k = 0; k < heavy.num_sums; ++k) sum[0] += from[k * s.D];
    put<1>(s.table + heavy.row * s.D + column, s.accumulate, sum);
  }
}

template <class T, int K>
void launch_sums(const Sums<T>& s, int num_multiprocessors, DeviceStream stream) {
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(s.lists.N, 8 * num_multiprocessors));
  const dim3 grid(blocks, blocks_for((s.D + K - 1) / K));
  sum_pieces<T, K><<<grid, kThreads, 0, as_stream(stream)>>>(s);
  TOK_CUDA_LAUNCHED();
  if (s.lists.N <= kEmbeddingPiece) return;
  const auto heavy = static_cast<unsigned>(
      std::min<int64_t>(s.lists.N / kEmbeddingPiece, 2 * num_multiprocessors));
  add_heavy<T><<<dim3(heavy, blocks_for(s.D)), kThreads, 0, as_stream(stream)>>>(s);
  TOK_CUDA_LAUNCHED();
}

void fill_lists(const Lists& lists, int64_t zeroed, DeviceStream stream) {
  TOK_CUDA(cudaMemsetAsync(lists.counts, 0, zeroed, as_stream(stream)));
  if (lists.N == 0) return;
  launch_for(lists.N, stream, Count{lists});
  allocate<<<blocks_for(lists.V), kThreads, 0, as_stream(stream)>>>(lists);
  TOK_CUDA_LAUNCHED();
  launch_for(lists.N, stream, Place{lists});
  sort<<<blocks_for(32 * lists.N), kThreads, 0, as_stream(stream)>>>(lists);
  TOK_CUDA_LAUNCHED();
}

template <class A>
void clear_unused(const Lists& lists, A* table, int64_t D, DeviceStream stream) {
  constexpr int kSize = Pack<A>::kSize;
  if (D % kSize == 0 && detail::is_aligned(table)) {
    const ClearUnused clear{lists.counts, reinterpret_cast<uint4*>(table), Divisor(D / kSize)};
    launch_moves<bool>(lists.V * D / kSize, stream, clear);
  } else {
    launch_for(lists.V * D, stream, ClearUnusedElement<A>{lists.counts, table, Divisor(D)});
  }
}

}  // namespace

Kernel prepare(const Embedding& op, const KernelTypes& types, const Setup&) {
  const int64_t V = types.in[1].dims[0];
  const int64_t first_row = op.first_row;
  const int64_t row_bytes = types.in[1].dims[1] * size_of(types.in[1].dtype);
  return [=](const KernelArgs& args) {
    if (args.out[0].numel() == 0) return;
    const uint64_t bits =
        static_cast<uint64_t>(row_bytes) | address(args.in[1].data) | address(args.out[0].data);
    by_word(bits, [&]<class W>() {
      constexpr auto kSize = static_cast<int64_t>(sizeof(W));
      const Gather<W> gather{
          args.in[0].as<int32_t>(),  args.in[1].as<W>(), args.out[0].as<W>(), V, first_row,
          Divisor(row_bytes / kSize)};
      launch_moves<W>(args.out[0].type.bytes() / kSize, args.stream, gather);
    });
  };
}

// Count the tokens of each row, give rows their places in a list, put the tokens there and sort
// them within each row; then zero the unused rows and sum the others.
Kernel prepare(const EmbeddingGrad& op, const KernelTypes& types, const Setup& setup) {
  const int64_t N = types.in[0].numel();
  const int64_t V = op.vocab;
  const int64_t first_row = op.first_row;
  const int64_t D = types.in[1].dims.back();
  const int num_multiprocessors = setup.device->num_multiprocessors();
  return by_float(types.in[1].dtype, [=]<class T>() -> Kernel {
    using A = Accum<T>;
    const EmbeddingGradLayout at(N, V, D, sizeof(A));
    return [=](const KernelArgs& args) {
      if (D == 0) return;
      auto* base = static_cast<std::byte*>(args.workspace);
      auto* tickets = reinterpret_cast<int32_t*>(base + at.tickets);
      const Lists lists{.tokens = args.in[0].as<int32_t>(),
                        .N = N,
                        .V = V,
                        .first_row = first_row,
                        .counts = reinterpret_cast<int32_t*>(base + at.counts),
                        .cursors = reinterpret_cast<Cursors*>(base + at.cursors),
                        .starts = reinterpret_cast<int32_t*>(base + at.starts),
                        .tickets = tickets,
                        .members = reinterpret_cast<int32_t*>(base + at.members),
                        .order = tickets,
                        .pieces = reinterpret_cast<Piece*>(base + at.pieces),
                        .heavy = reinterpret_cast<HeavyRow*>(base + at.heavy)};
      const Sums<T> sums{
          lists, args.in[1].as<T>(), args.out[0].as<A>(), reinterpret_cast<A*>(base + at.sums),
          D,     args.accumulate[0]};
      fill_lists(lists, at.starts - at.counts, args.stream);
      if (!args.accumulate[0]) clear_unused(lists, sums.table, D, args.stream);
      if (N == 0) return;
      constexpr int kSize = Pack<T>::kSize;
      const bool is_even =
          D % kSize == 0 && detail::is_aligned(sums.dy) && detail::is_aligned(sums.table);
      is_even ? launch_sums<T, kSize>(sums, num_multiprocessors, args.stream)
              : launch_sums<T, 1>(sums, num_multiprocessors, args.stream);
    };
  });
}

}  // namespace tokamak::gpu
