#include <cstring>
#include <type_traits>

#include "tokamak/gpu/dependent.cuh"
#include "tokamak/gpu/dispatch.cuh"
#include "tokamak/gpu/gemm/gemm.h"
#include "tokamak/gpu/product_tile.cuh"
#include "tokamak/ops/column_sums.h"
#include "tokamak/ops/matmul/few_rows.h"
#include "tokamak/ops/matmul/linear.h"

namespace tokamak::gpu {
namespace {

// op(A) or op(B), with rows r and inner index k.
template <class T>
struct Factor {
  const T* data;
  int64_t stride_r;
  int64_t stride_k;
};

template <class In, class Out>
struct Product {
  int64_t M, N, K;
  Factor<In> a;
  Factor<In> b;
  const In* bias;
  Out* c;
  bool accumulate;
};

// tile[k][r] = factor(r0 + r, k0 + k), 0 outside; neighbouring threads read along the dense dim.
template <class T, class A>
__device__ void load_tile(ProductTile<A>& tile, const Factor<T>& factor, int64_t R, int64_t K,
                          int64_t r0, int64_t k0) {
  const bool is_along_k = factor.stride_k == 1;
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < kProductTile * kProductDepth; i += kThreads) {
    const int k = is_along_k ? i % kProductDepth : i / kProductTile;
    const int r = is_along_k ? i / kProductDepth : i % kProductTile;
    const bool is_inside = r0 + r < R && k0 + k < K;
    tile[k][r] = is_inside
                     ? to<A>(factor.data[(r0 + r) * factor.stride_r + (k0 + k) * factor.stride_k])
                     : A{0};
  }
}

// C[m, n] (+)= sum_k A(m, k) B(k, n) (+ bias[n]). A and B are read once for each 64 columns or rows
// of C.
template <class In, class Out>
__global__ void __launch_bounds__(kThreads) multiply(Product<In, Out> p) {
  using A = Accum<Out>;
  __shared__ __align__(16) ProductTile<A> tile_a;
  __shared__ __align__(16) ProductTile<A> tile_b;
  const int64_t m0 = static_cast<int64_t>(blockIdx.x) * kProductTile;
  const int64_t n0 = static_cast<int64_t>(blockIdx.y) * kProductTile;
  A sum[kProductEach][kProductEach] = {};
  for (int64_t k0 = 0; k0 < p.K; k0 += kProductDepth) {
    load_tile<In, A>(tile_a, p.a, p.M, p.K, m0, k0);
    load_tile<In, A>(tile_b, p.b, p.N, p.K, n0, k0);
    __syncthreads();
    multiply_tiles<A>(tile_a, tile_b, sum);
    __syncthreads();
  }
  store_product(sum, m0, n0, p.M, p.N, p.bias, p.c, p.accumulate);
}

// The inputs of an op that are A and B; the bias is the third.
struct Roles {
  size_t a;
  size_t b;
  int64_t first_of_a = 0;  // the element of that input with which A begins
};

template <class In, class Out>
Kernel portable_product(const GemmShape& s, Roles roles) {
  return [s, roles](const KernelArgs& args) {
    if (s.m == 0 || s.n == 0) return;
    const Product<In, Out> product{
        .M = s.m,
        .N = s.n,
        .K = s.k,
        .a = {args.in[roles.a].as<In>() + roles.first_of_a, s.transpose_a ? 1 : s.row_of_a(),
              s.transpose_a ? s.row_of_a() : 1},
        .b = {args.in[roles.b].as<In>(), s.transpose_b ? s.k : 1, s.transpose_b ? 1 : s.n},
        .bias = s.bias ? args.in[2].as<In>() : nullptr,
        .c = args.out[0].as<Out>(),
        .accumulate = args.accumulate[0]};
    multiply<<<product_blocks(s.m, s.n), kThreads, 0, as_stream(args.stream)>>>(product);
    TOK_CUDA_LAUNCHED();
  };
}

// Reads words of a weight that no other thread reads, and leaves the first cache to x. The load
// stays ahead of wait_for_previous(), which one of constant memory (.nc) would not.
__device__ inline uint4 read_once(const void* from) {
#ifdef TOK_HIP
  return *static_cast<const uint4*>(from);
#else
  uint4 word;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
               : "l"(from)
               : "memory");
  return word;
#endif
}

// y[m, o] = sum_i x[m, i] w[o, i] (+ bias[o]) for kM rows of x. kSplit warps share kFewestOutputs
// rows of w and take 512 bytes of each in turns, two at a time. w is read once, x by each block
// from the caches. The first words of w come while the previous kernel runs. The last rows overlap
// those before them where O is no multiple of kFewestOutputs.
template <class T, int kM, int kSplit>
__global__ void __launch_bounds__(kThreads, kM == 1 ? 3 : 2)
    multiply_few_rows(int64_t O, int I, const T* x, const T* w, const T* bias, T* y) {
  constexpr int kEach = Pack<T>::kSize;
  constexpr int kAtOnce = 2;
  constexpr int kGroups = kThreads / 32 / kSplit;
  constexpr int kStep = kSplit * 32 * kEach;
  __shared__ float parts[kThreads / 32][kFewestOutputs][kM];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const auto first_of = [&](int group) {
    const int64_t o = (static_cast<int64_t>(blockIdx.x) * kGroups + group) * kFewestOutputs;
    return o < O - kFewestOutputs ? o : O - kFewestOutputs;
  };
  const T* const rows = w + first_of(warp / kSplit) * I;
  int i = (warp % kSplit * 32 + lane) * kEach;
  uint4 words[kFewestOutputs][kAtOnce];
  // Loads without conditions are under way together; those past the end are not used.
  const auto read = [&] {
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int at = i + u * kStep;
      const T* from = rows + (at < I ? at : 0);
#pragma unroll
      for (int r = 0; r < kFewestOutputs; ++r, from += I) words[r][u] = read_once(from);
    }
  };
  let_next_start();
  read();
  wait_for_previous();
  float sum[kFewestOutputs][kM] = {};
  while (i < I) {
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int at = i + u * kStep;
      if (at >= I) break;
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        const auto from = *reinterpret_cast<const Pack<T>*>(x + m * static_cast<int64_t>(I) + at);
#pragma unroll
        for (int r = 0; r < kFewestOutputs; ++r) {
          Pack<T> weight;
          memcpy(&weight, &words[r][u], sizeof weight);
#pragma unroll
          for (int e = 0; e < kEach; ++e)
            sum[r][m] += to<float>(from.v[e]) * to<float>(weight.v[e]);
        }
      }
    }
    i += kAtOnce * kStep;
    if (i < I) read();
  }
#pragma unroll
  for (int r = 0; r < kFewestOutputs; ++r) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int d = 16; d > 0; d /= 2) sum[r][m] += __shfl_xor_sync(0xFFFFFFFFU, sum[r][m], d);
      if (lane == 0) parts[warp][r][m] = sum[r][m];
    }
  }
  __syncthreads();
  const int row = static_cast<int>(threadIdx.x) / kM;
  const int m = static_cast<int>(threadIdx.x) % kM;
  if (row >= kGroups * kFewestOutputs) return;
  const int64_t mine = first_of(row / kFewestOutputs) + row % kFewestOutputs;
  float total = bias == nullptr ? 0.0F : to<float>(bias[mine]);
#pragma unroll
  for (int s = 0; s < kSplit; ++s)
    total += parts[row / kFewestOutputs * kSplit + s][row % kFewestOutputs][m];
  y[m * O + mine] = to<T>(total);
}

template <class T, int kM>
Kernel few_rows(int64_t O, int64_t I, bool has_bias, bool waits) {
  return [=](const KernelArgs& args) {
    const auto launch = [&]<int kSplit>() {
      constexpr int64_t kRows = kThreads / 32 / kSplit * kFewestOutputs;
      launch_dependent(
          waits, multiply_few_rows<T, kM, kSplit>, static_cast<unsigned>((O + kRows - 1) / kRows),
          kThreads, as_stream(args.stream), O, static_cast<int>(I), args.in[0].as<T>(),
          args.in[1].as<T>(), has_bias ? args.in[2].as<T>() : nullptr, args.out[0].as<T>());
    };
    // Enough warps share a row to have all of it in flight at once.
    const int64_t turns = I / (32 * Pack<T>::kSize);
    if (turns >= 16) {
      launch.template operator()<8>();
    } else if (turns >= 8) {
      launch.template operator()<4>();
    } else {
      launch.template operator()<1>();
    }
  };
}

Kernel prepare_few_rows(const GemmShape& s, DType dtype, bool waits) {
  return by_float(dtype, [&]<class T>() -> Kernel {
    if constexpr (!std::is_same_v<T, double>) {
      switch (s.m) {
        case 1:
          return few_rows<T, 1>(s.n, s.k, s.bias, waits);
        case 2:
          return few_rows<T, 2>(s.n, s.k, s.bias, waits);
        case 3:
          return few_rows<T, 3>(s.n, s.k, s.bias, waits);
        case kMostFewRows:
          return few_rows<T, kMostFewRows>(s.n, s.k, s.bias, waits);
        default:
          break;
      }
    }
    fail_call("linear", "not a matmul of few rows");
  });
}

Kernel prepare_product(GemmShape shape, Roles roles, const KernelTypes& types, const Setup& setup) {
  shape.in = types.in[0].dtype;
  shape.out = types.out[0].dtype;
  shape.workspace_bytes = kCublasWorkspace;
  const bool is_empty = shape.m == 0 || shape.n == 0 || shape.k == 0;
  if (setup.variant == kGpuKernel.name || is_empty) {
    return by_float(shape.in, [&]<class In>() -> Kernel {
      return shape.out == shape.in ? portable_product<In, In>(shape, roles)
                                   : portable_product<In, Accum<In>>(shape, roles);
    });
  }
  const Gemm gemm(shape, *setup.device);
  const int64_t skipped = roles.first_of_a * size_of(shape.in);
  return [gemm, roles, skipped, bias = shape.bias](const KernelArgs& args) {
    gemm.run(static_cast<const std::byte*>(args.in[roles.a].data) + skipped, args.in[roles.b].data,
             bias ? args.in[2].data : nullptr, args.out[0].data, args.accumulate[0], args.workspace,
             args.stream);
  };
}

// partial[g, o] = sum over the rows n of group g of dy[n, o]: the first pass of db. A block takes
// kColumns columns per lane of one group, and each of its warps every eighth row, four at a time;
// dy is read once.
template <class T, int kColumns>
__global__ void __launch_bounds__(kThreads, kColumns == 1 ? 4 : 2)
    sum_rows(int64_t N, int64_t O, const T* dy, Accum<T>* partial) {
  using A = Accum<T>;
  constexpr int kWarps = kThreads / 32;
  constexpr int kAtOnce = 4;
  constexpr int kStrip = 32 * kColumns;
  using Word = std::conditional_t<kColumns == 1, T, uint4>;
  static_assert(sizeof(Word) == kColumns * sizeof(T));
  __shared__ A parts[kWarps][kStrip];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t o0 = static_cast<int64_t>(blockIdx.x) * kStrip;
  const int64_t o = o0 + lane * kColumns;
  const int64_t end = N * (blockIdx.y + 1) / gridDim.y;
  int64_t n = N * blockIdx.y / gridDim.y + warp;
  A sum[kColumns] = {};
  if (o < O) {
    for (; n < end; n += kAtOnce * kWarps) {
      Word words[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        words[i] = Word{};
        const T* row = dy + (n + i * kWarps) * O + o;
        if (n + i * kWarps < end) words[i] = *reinterpret_cast<const Word*>(row);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        T x[kColumns];
        memcpy(x, &words[i], sizeof(Word));
#pragma unroll
        for (int j = 0; j < kColumns; ++j) sum[j] += to<A>(x[j]);
      }
    }
  }
#pragma unroll
  for (int j = 0; j < kColumns; ++j) parts[warp][lane * kColumns + j] = sum[j];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kStrip && o0 + i < O; i += kThreads) {
    A total{0};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += parts[w][i];
    partial[blockIdx.y * O + o0 + i] = total;
  }
}

constexpr int kGroupThreads = 256;

// db[o] (+)= sum_g partial[g, o]: a block takes 32 columns, and each warp every eighth group.
template <class A>
__global__ void __launch_bounds__(kGroupThreads)
    sum_groups(int64_t O, int groups, const A* partial, A* db, bool accumulate) {
  constexpr int kWarps = kGroupThreads / 32;
  __shared__ A parts[kWarps][32];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t o = static_cast<int64_t>(blockIdx.x) * 32 + lane;
  wait_for_previous();
  A sum{0};
  if (o < O) {
#pragma unroll 4
    for (int g = warp; g < groups; g += kWarps) sum += partial[g * O + o];
  }
  parts[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || o >= O) return;
  A total = accumulate ? db[o] : A{0};
#pragma unroll 8
  for (int w = 0; w < kWarps; ++w) total += parts[w][lane];
  db[o] = total;
}

unsigned blocks_of(int64_t n, int64_t each) {
  return static_cast<unsigned>((n + each - 1) / each);
}

template <class T>
Kernel column_sums(int64_t N, int64_t O, bool waits) {
  return [=](const KernelArgs& args) {
    if (O == 0) return;
    constexpr int kColumns = Pack<T>::kSize;
    static_assert(32 * kColumns == column_strip(sizeof(T)));
    const auto groups = static_cast<unsigned>(column_row_groups(N, O, sizeof(T)));
    const cudaStream_t stream = as_stream(args.stream);
    const T* dy = args.in[0].as<T>();
    auto* partial = static_cast<Accum<T>*>(args.workspace);
    if (O % kColumns == 0 && detail::is_aligned(dy)) {
      const dim3 blocks(blocks_of(O, 32 * kColumns), groups);
      sum_rows<T, kColumns><<<blocks, kThreads, 0, stream>>>(N, O, dy, partial);
    } else {
      sum_rows<T, 1><<<dim3(blocks_of(O, 32), groups), kThreads, 0, stream>>>(N, O, dy, partial);
    }
    TOK_CUDA_LAUNCHED();
    launch_dependent(waits, sum_groups<Accum<T>>, blocks_of(O, 32), kGroupThreads, stream, O,
                     static_cast<int>(groups), partial, args.out[0].as<Accum<T>>(),
                     args.accumulate[0]);
  };
}

}  // namespace

Kernel prepare(const Linear& op, const KernelTypes& types, const Setup& setup) {
  const GemmShape shape{.m = rows_of(types.in[0]),
                        .n = types.in[1].dims[0],
                        .k = types.in[1].dims[1],
                        .transpose_b = true,
                        .bias = types.in.size() == 3 && op.adds_bias};
  if (setup.variant == kFewRowsVariant)
    return prepare_few_rows(shape, types.in[0].dtype, can_wait_for_previous(setup));
  return prepare_product(shape, {.a = 0, .b = 1}, types, setup);
}

Kernel prepare(const LinearGradInput&, const KernelTypes& types, const Setup& setup) {
  const GemmShape shape{
      .m = rows_of(types.in[0]), .n = types.in[1].dims[1], .k = types.in[1].dims[0]};
  return prepare_product(shape, {.a = 0, .b = 1}, types, setup);
}

Kernel prepare(const LinearGradWeight& op, const KernelTypes& types, const Setup& setup) {
  const GemmShape shape{.m = op.num_rows(types.in[1]),
                        .n = types.in[0].dims.back(),
                        .k = rows_of(types.in[0]),
                        .transpose_a = true,
                        .a_stride = op.rows > 0 ? types.in[1].dims.back() : 0};
  return prepare_product(shape, {.a = 1, .b = 0, .first_of_a = op.begin}, types, setup);
}

Kernel prepare(const LinearGradBias&, const KernelTypes& types, const Setup& setup) {
  return by_float(types.in[0].dtype, [&]<class T>() -> Kernel {
    return column_sums<T>(rows_of(types.in[0]), types.in[0].dims.back(),
                          can_wait_for_previous(setup));
  });
}

}  // namespace tokamak::gpu
