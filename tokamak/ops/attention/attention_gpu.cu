#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "tokamak/gpu/attention/cudnn_attention.h"
#include "tokamak/ops/attention/attention_decode_gpu.cuh"
#include "tokamak/ops/attention/attention_tile_gpu.cuh"
#include "tokamak/ops/elementwise/add.h"

namespace tokamak::gpu {

Kernel prepare(const Add&, const KernelTypes&, const Setup&);

namespace {

// o = softmax(scale q k^T) v and lse. A block has a tile of rows and walks the key tiles that they
// see, the longest walks first; K and V are read once for each tile of rows, all else once.
template <class T, int kD, bool kCaps>
__global__ void __launch_bounds__(kTileThreads)
    attention_forward(const Problem p, const T* q, const T* k, const T* v, T* o, Accum<T>* lse) {
  using namespace detail;
  using A = Accum<T>;
  constexpr int kN = kForwardTile<A, kD>;
  __shared__ Rows<A, kN> rows;
  A* q_tile = shared_tiles<A>();
  A* kv_tile = q_tile + kTokensSize<A, kD, kN>;
  A* weights = kv_tile + kTokensSize<A, kD, kN>;
  const Place where(p);
  const int64_t all = p.S * p.G;
  const int64_t first = ((all - 1) / kN - where.tile) * kN;
  rows.fill(p, where, first);
  __syncthreads();
  load_rows<kD, kN>(q, p, rows.q_at, first, q_tile);
  const int64_t end = rows.end[(all - first < kN ? all - first : kN) - 1];
  const uint64_t sample = sample_of(p, where.b);
  Sums<A, kD, kN> sums;
  Softmax<A, kN> softmax;
  for (int64_t c = rows.begin[0]; c < end; c += kN) {
    load_keys<kD, kN>(k, p, where, c, end, kv_tile);
    __syncthreads();
    A s[kN / kTileRows][kN / kTileColumns];
    dot_products<A, kD, kN>(q_tile, kv_tile, s);
#pragma unroll
    for (int i = 0; i < kN / kTileRows; ++i) {
      const int row = tile_row() + i * kTileRows;
#pragma unroll
      for (int j = 0; j < kN / kTileColumns; ++j) {
        const bool sees = rows.sees(row, c + tile_column() + j * kTileColumns);
        s[i][j] = sees ? score_of<kCaps>(p, s[i][j]) : -std::numeric_limits<A>::infinity();
      }
      sums.scale(i, softmax.add(i, s[i]));
#pragma unroll
      for (int j = 0; j < kN / kTileColumns; ++j) {
        const int column = tile_column() + j * kTileColumns;
        if (p.drops) s[i][j] *= kept<A>(p, sample, rows.element[row], c + column);
        weights[row * kScoreStride<kN> + column] = s[i][j];
      }
    }
    __syncthreads();
    load_keys<kD, kN>(v, p, where, c, end, kv_tile);
    __syncthreads();
    sums.add(weights, kScoreStride<kN>, 1, kv_tile);
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kN / kTileRows; ++i) {
    const int row = tile_row() + i * kTileRows;
    if (first + row >= all) continue;
    const bool sees = rows.end[row] > 0;
    sums.scale(i, sees ? A{1} / softmax.total[i] : A{0});
    sums.store(i, p.D, o + rows.o_at[row]);
    if (tile_column() == 0) {
      lse[rows.statistic[row]] = softmax.largest[i] + (sees ? log_of(softmax.total[i]) : A{0});
    }
  }
}

// delta = sum_d o dy - dlse, one warp for each of the `rows` (b, s, h); o and dy are read once.
template <class T>
__global__ void __launch_bounds__(kThreads)
    attention_delta(const Problem p, int64_t rows, const T* o, const T* dy, const Statistics dlse,
                    Accum<T>* delta) {
  using A = Accum<T>;
  const int64_t r = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  if (r >= rows) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  A sum{0};
  for (int64_t d = lane; d < p.D; d += 32) sum += to<A>(o[r * p.D + d]) * to<A>(dy[r * p.D + d]);
#pragma unroll
  for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(0xFFFFFFFFU, sum, d);
  if (lane > 0) return;
  const int64_t h = r % p.H;
  const int64_t i = r / p.H % p.S;
  const int64_t statistic = (r / p.H / p.S * p.H + h) * p.S + i;
  delta[statistic] = dlse.data == nullptr ? sum : sum - dlse.at<A>(statistic);
}

// dq = sum_t ds k. A block has a tile of rows and walks the key tiles that they see, the longest
// walks first; K and V are read once for each tile of rows, all else once.
template <class T, int kD, bool kCaps>
__global__ void __launch_bounds__(kTileThreads)
    attention_grad_queries(const Problem p, const T* q, const T* k, const T* v, const T* dy,
                           const Statistics lse, const Accum<T>* delta, T* dq) {
  using namespace detail;
  using A = Accum<T>;
  constexpr int kN = kBackwardTile<A, kD>;
  __shared__ Rows<A, kN> rows;
  const GradTiles<A, kD, kN> tiles(shared_tiles<A>());
  const Place where(p);
  const int64_t all = p.S * p.G;
  const int64_t first = ((all - 1) / kN - where.tile) * kN;
  rows.fill(p, where, first, lse, delta);
  __syncthreads();
  load_rows<kD, kN>(q, p, rows.q_at, first, tiles.q);
  load_rows<kD, kN>(dy, p, rows.o_at, first, tiles.dy);
  const int64_t end = rows.end[(all - first < kN ? all - first : kN) - 1];
  const uint64_t sample = sample_of(p, where.b);
  Sums<A, kD, kN> sums;
  for (int64_t c = rows.begin[0]; c < end; c += kN) {
    load_keys<kD, kN>(k, p, where, c, end, tiles.k);
    load_keys<kD, kN>(v, p, where, c, end, tiles.v);
    __syncthreads();
    tiles.template scores<kCaps>(p, rows, sample, c);
    __syncthreads();
    sums.add(tiles.ds, kScoreStride<kN>, 1, tiles.k);
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kN / kTileRows; ++i) {
    const int row = tile_row() + i * kTileRows;
    if (first + row < all) sums.store(i, p.D, dq + rows.q_at[row]);
  }
}

// dk = sum_r ds q, dv = sum_r p dy. A block has a tile of keys and walks the row tiles that see
// them in ascending order, the longest walks first; q and dy are read once for each tile of keys.
template <class T, int kD, bool kCaps>
__global__ void __launch_bounds__(kTileThreads)
    attention_grad_keys(const Problem p, const T* q, const T* k, const T* v, const T* dy,
                        const Statistics lse, const Accum<T>* delta, T* dk, T* dv) {
  using namespace detail;
  using A = Accum<T>;
  constexpr int kN = kBackwardTile<A, kD>;
  __shared__ Rows<A, kN> rows;
  const GradTiles<A, kD, kN> tiles(shared_tiles<A>());
  const Place where(p);
  const int64_t c = where.tile * kN;
  load_keys<kD, kN>(k, p, where, c, p.T, tiles.k);
  load_keys<kD, kN>(v, p, where, c, p.T, tiles.v);
  const int64_t hidden = p.is_causal ? c - (p.T - p.S) : 0;  // queries before the first that sees c
  // Queries before the first that sees none of the tile's keys any more.
  const int64_t seen = p.window > 0 ? c + kN - 1 + p.window - (p.T - p.S) : p.S;
  const int64_t last_row = (seen < p.S ? seen : p.S) * p.G;
  const uint64_t sample = sample_of(p, where.b);
  Sums<A, kD, kN> dk_sums;
  Sums<A, kD, kN> dv_sums;
  for (int64_t first = (hidden > 0 ? hidden : 0) * p.G; first < last_row; first += kN) {
    rows.fill(p, where, first, lse, delta);
    __syncthreads();
    load_rows<kD, kN>(q, p, rows.q_at, first, tiles.q);
    load_rows<kD, kN>(dy, p, rows.o_at, first, tiles.dy);
    __syncthreads();
    tiles.template scores<kCaps>(p, rows, sample, c);
    __syncthreads();
    dv_sums.add(tiles.p, 1, kScoreStride<kN>, tiles.dy);
    dk_sums.add(tiles.ds, 1, kScoreStride<kN>, tiles.q);
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kN / kTileRows; ++i) {
    const int64_t j = c + tile_row() + i * kTileRows;
    if (j >= p.T) continue;
    const int64_t at = (where.b * p.T + j) * p.kv_step + where.kv * p.D;
    dk_sums.store(i, p.D, dk + at);
    dv_sums.store(i, p.D, dv + at);
  }
}

Problem problem_of(const Attention& op, const KernelTypes& types) {
  const AttentionShape s = op.shape(types.in);
  const double scale =
      op.scale != 0.0F ? static_cast<double>(op.scale) : 1.0 / std::sqrt(static_cast<double>(s.D));
  return {.B = s.B,
          .S = s.S,
          .T = s.T,
          .H = s.H,
          .K = s.K,
          .D = s.D,
          .G = s.group(),
          .q_step = s.q_step(),
          .kv_step = s.kv_step(),
          .scale = scale,
          .is_causal = op.causal,
          .window = op.window,
          .cap = op.cap,
          .drops = op.dropout_p > 0.0,
          .key = dropout_key(op.seed, op.stream),
          .threshold = dropout_threshold(op.dropout_p),
          .kept = 1.0 / (1.0 - op.dropout_p),
          .first_head = op.first_head,
          .first_query = op.first_query,
          .first_key = op.first_key};
}

int64_t bytes_of(const CudnnAttention& a) {
  return cudnn_attention_bytes(a.shape, a.backward, a.deterministic);
}

// Where queries do not begin at the first key, cuDNN's backward computes masked pairs too. So this
// runs the earlier keys without a mask, then the square on the diagonal: the two write gradients of
// different keys, and those of queries are summed. Returns an empty kernel if it does not pay.
Kernel prepare_in_pieces(const CudnnAttention& whole, const Setup& setup) {
  constexpr int64_t kLeastQueries = 512;
  constexpr int64_t kAlignment = 1024;
  const AttentionShape& s = whole.shape;
  if (!whole.backward || !whole.causal || whole.window > 0 || s.T == s.S || s.S < kLeastQueries)
    return {};
  CudnnAttention earlier = whole;
  earlier.shape.T = s.T - s.S;
  earlier.causal = false;
  CudnnAttention square = whole;
  square.shape.T = s.S;
  // A single sample's keys lie in memory as if there were no others.
  if (s.B > 1) earlier.kv_tokens = square.kv_tokens = s.T;
  const TensorType dq_type{.dtype = DType::kBF16, .dims = {s.B, s.S, s.H, s.D}};
  // The offset of the square's dq, after its kernel's workspace.
  const int64_t dq_at = (bytes_of(whole) - dq_type.bytes()) / kAlignment * kAlignment;
  if (std::max(bytes_of(earlier), bytes_of(square)) > dq_at) return {};
  const Kernel of_earlier = prepare_cudnn_attention(earlier, dq_at, *setup.device);
  const Kernel of_square = prepare_cudnn_attention(square, dq_at, *setup.device);
  if (!of_earlier || !of_square) return {};
  const std::array<TensorType, 2> pair_of_dq{dq_type, dq_type};
  const Kernel add =
      prepare(Add{}, {.in = pair_of_dq, .out = std::span(pair_of_dq).first(1)}, setup);
  const int64_t first_key = earlier.shape.T * s.kv_step();
  return [=](const KernelArgs& args) {
    of_earlier(args);
    const auto from_first = [&](Tensor t) {
      t.data = static_cast<BF16*>(t.data) + first_key;
      return t;
    };
    std::vector<Tensor> in(args.in.begin(), args.in.end());
    for (const size_t k : {1, 2}) in[k] = from_first(in[k]);
    const Tensor dq{
        .data = static_cast<std::byte*>(args.workspace) + dq_at, .type = dq_type, .strides = {}};
    const std::array<Tensor, 3> out{dq, from_first(args.out[1]), from_first(args.out[2])};
    of_square({.in = in, .out = out, .workspace = args.workspace, .stream = args.stream});
    const std::array<Tensor, 2> parts{args.out[0], dq};
    add({.in = parts, .out = args.out.first(1), .stream = args.stream});
  };
}

Kernel prepare_cudnn(const Attention& op, const KernelTypes& types, const Setup& setup,
                     bool backward) {
  const AttentionShape shape = op.shape(types.in);
  const CudnnAttention wanted{.shape = shape,
                              .scale = static_cast<float>(problem_of(op, types).scale),
                              .causal = op.causal,
                              .window = op.window < shape.T ? op.window : 0,
                              .cap = op.cap,
                              .backward = backward,
                              .deterministic = backward && setup.deterministic};
  if (Kernel kernel = prepare_in_pieces(wanted, setup)) return kernel;
  return prepare_cudnn_attention(wanted, bytes_of(wanted), *setup.device);
}

// Calls `make.operator()<T, kD>()` for the element type and the next head dim that has a kernel.
template <class Make>
Kernel by_float_and_dim(DType dtype, int64_t D, const Make& make) {
  return by_float(dtype, [&]<class T>() -> Kernel {
    if (D <= 64) return make.template operator()<T, 64>();
    if (D <= 128) return make.template operator()<T, 128>();
    return make.template operator()<T, 256>();
  });
}

[[noreturn]] void fail_tile() {
  fail_call("attention", "heads of this size and type do not fit this GPU's shared memory");
}

template <class F>
void allow_shared(F* kernel, int bytes) {
  TOK_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
}

// Launches a block for each of `tiles` tiles of each key-value head of each sample.
template <class F, class... P>
void launch_tiles(F* kernel, const Problem& p, int64_t tiles, int shared, DeviceStream stream,
                  const P&... parameters) {
  const int64_t blocks = tiles * p.B * p.K;
  if (blocks == 0) return;
  kernel<<<static_cast<unsigned>(blocks), kTileThreads, static_cast<size_t>(shared),
           as_stream(stream)>>>(p, parameters...);
  TOK_CUDA_LAUNCHED();
}

int64_t tiles_for(int64_t n, int64_t tile) {
  return (n + tile - 1) / tile;
}

template <class T, int kD>
Kernel make_forward(const Attention& op, const AttentionShape& shape, const Problem& problem) {
  using A = Accum<T>;
  constexpr int kN = kForwardTile<A, kD>;
  constexpr int kShared = kForwardBytes<A, kD, kN>;
  auto* const kernel =
      op.cap > 0.0 ? &attention_forward<T, kD, true> : &attention_forward<T, kD, false>;
  allow_shared(kernel, kShared);
  return [problem, shape, kernel, at = op.inputs()](const KernelArgs& a) {
    Problem p = problem;
    if (at.length != AttentionInputs::kNone) {
      p.lengths = a.in[at.length].as<int32_t>();
      p.one_length = a.in[at.length].numel() == 1;
    }
    if (p.drops) p.samples = a.in[at.rows].as<int64_t>();
    launch_tiles(kernel, p, tiles_for(p.S * p.G, kN), kShared, a.stream,
                 shape.part<const T>(a.in, 0), shape.part<const T>(a.in, 1),
                 shape.part<const T>(a.in, 2), a.out[0].as<T>(), a.out[1].as<A>());
  };
}

Statistics statistics_of(const Tensor& t) {
  return {.data = t.data, .is_double = t.type.dtype == DType::kF64};
}

template <class T, int kD>
Kernel make_backward(const AttentionGrad& op, const AttentionShape& shape, const Problem& problem) {
  using A = Accum<T>;
  constexpr int kN = kBackwardTile<A, kD>;
  constexpr int kShared = kBackwardBytes<A, kD, kN>;
  const bool caps = op.forward.cap > 0.0;
  auto* const of_queries =
      caps ? &attention_grad_queries<T, kD, true> : &attention_grad_queries<T, kD, false>;
  auto* const of_keys =
      caps ? &attention_grad_keys<T, kD, true> : &attention_grad_keys<T, kD, false>;
  allow_shared(of_queries, kShared);
  allow_shared(of_keys, kShared);
  return [problem, shape, of_queries, of_keys, at = op.inputs()](const KernelArgs& a) {
    Problem p = problem;
    if (p.drops) p.samples = a.in[at.rows].as<int64_t>();
    const Statistics lse = statistics_of(a.in[at.lse]);
    const bool has_dlse = at.dlse != AttentionInputs::kNone;
    const Statistics dlse = has_dlse ? statistics_of(a.in[at.dlse]) : Statistics{};
    auto* delta = static_cast<A*>(a.workspace);
    const T* q = shape.part<const T>(a.in, 0);
    const T* k = shape.part<const T>(a.in, 1);
    const T* v = shape.part<const T>(a.in, 2);
    const T* o = a.in[at.o].as<const T>();
    const T* dy = a.in[at.dy].as<const T>();
    const int64_t rows = p.B * p.S * p.H;
    if (rows > 0) {
      attention_delta<T><<<blocks_for(rows * 32), kThreads, 0, as_stream(a.stream)>>>(
          p, rows, o, dy, dlse, delta);
      TOK_CUDA_LAUNCHED();
    }
    launch_tiles(of_queries, p, tiles_for(p.S * p.G, kN), kShared, a.stream, q, k, v, dy, lse,
                 delta, shape.part<T>(a.out, 0));
    launch_tiles(of_keys, p, tiles_for(p.T, kN), kShared, a.stream, q, k, v, dy, lse, delta,
                 shape.part<T>(a.out, 1), shape.part<T>(a.out, 2));
  };
}

}  // namespace

Kernel prepare(const Attention& op, const KernelTypes& types, const Setup& setup) {
  if (setup.variant == kDecodeVariant) {
    const Problem problem = problem_of(op, types);
    return by_float_and_dim(types.in[0].dtype, problem.D, [&]<class T, int kD>() -> Kernel {
      if constexpr (std::is_same_v<T, double>)
        fail_tile();
      else
        return make_decode<T, kD>(op, types, problem, can_wait_for_previous(setup));
    });
  }
  if (setup.variant != kGpuKernel.name) {
    if (Kernel kernel = prepare_cudnn(op, types, setup, false)) return kernel;
  }
  const Problem problem = problem_of(op, types);
  return by_float_and_dim(types.in[0].dtype, problem.D, [&]<class T, int kD>() -> Kernel {
    if constexpr (kForwardTile<Accum<T>, kD> == 0)
      fail_tile();
    else
      return make_forward<T, kD>(op, op.shape(types.in), problem);
  });
}

Kernel prepare(const AttentionGrad& op, const KernelTypes& types, const Setup& setup) {
  if (setup.variant != kGpuKernel.name) {
    if (Kernel kernel = prepare_cudnn(op.forward, types, setup, true)) return kernel;
  }
  const Problem problem = problem_of(op.forward, types);
  return by_float_and_dim(types.in[0].dtype, problem.D, [&]<class T, int kD>() -> Kernel {
    if constexpr (kBackwardTile<Accum<T>, kD> == 0)
      fail_tile();
    else
      return make_backward<T, kD>(op, op.forward.shape(types.in), problem);
  });
}

}  // namespace tokamak::gpu
