#include <cstring>

#include "tokamak/gpu/dependent.cuh"
#include "tokamak/ops/float8/fused_float8_gpu.cuh"
#include "tokamak/ops/float8/row_codes_gpu.cuh"
#include "tokamak/ops/norm/norm_rows_gpu.cuh"

namespace tokamak::gpu {
namespace {

// N rows, D embed.

// The operands of a norm: y from x or, with a branch, from sum = T(x + branch), which may lie on x
// or branch. An RMS norm has no b.
template <class T>
struct Operands {
  const T* x;
  const T* branch;
  const T* w;
  const T* b;
  T* sum;                // null if it is not wanted
  T* y;                  // null if only its codes are wanted
  uint32_t* most;        // the greatest magnitude of y, if wanted
  RowCodes codes;        // of y, if wanted
  DelayedCodes to = {};  // the same under a delayed scale
  Delayed gate = {};     // nothing is done if it has a scale
};

// A group of threads holds a row, P accesses per thread; x (and branch) is read once, y (and sum)
// written once. Blocks that keep maxima of columns take every gridDim.x-th group of rows.
template <int P, int kMostThreads, bool kAdds, bool kEncodes, class Row>
__global__ void __launch_bounds__(kMostThreads)
    norm_of_held(Operands<typename Row::Element> o, int64_t N, int D, int group,
                 typename Row::A eps) {
  using T = typename Row::Element;
  using A = typename Row::A;
  constexpr int K = Pack<T>::kSize;
  const int thread = static_cast<int>(threadIdx.x);
  const int member = thread % group;
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const int d = (p * group + member) * K;
    if (d < D) prefetch(o.w + d);
  }
  wait_for_previous();
  let_next_start();
  if (o.gate.has_scale()) return;
  const int64_t rows = blockDim.x / group;
  int64_t n = static_cast<int64_t>(blockIdx.x) * rows + thread / group;
  ColumnMaxima<K, T> columns[kEncodes ? P : 1];
  uint32_t most = 0;
  do {
    uint4 row[P];
    uint4 branch[P];
#pragma unroll
    for (int p = 0; p < P; ++p) {
      const int d = (p * group + member) * K;
      row[p] = branch[p] = uint4{};
      if (n >= N || d >= D) continue;
      row[p] = *reinterpret_cast<const uint4*>(o.x + n * D + d);
      if constexpr (kAdds) branch[p] = *reinterpret_cast<const uint4*>(o.branch + n * D + d);
    }
    A first{0};
    if constexpr (Row::kReadsFirst) {
      if (n < N) {
        first = to<A>(o.x[n * D]);
        if constexpr (kAdds) first = to<A>(to<T>(first + to<A>(o.branch[n * D])));
      }
    }
    if constexpr (kAdds) {
#pragma unroll
      for (int p = 0; p < P; ++p) {
        T v[K];
        T u[K];
        memcpy(v, &row[p], sizeof(v));
        memcpy(u, &branch[p], sizeof(u));
#pragma unroll
        for (int k = 0; k < K; ++k) v[k] = to<T>(to<A>(v[k]) + to<A>(u[k]));
        memcpy(&row[p], v, sizeof(v));
        // The start of the row is not written until all threads have read it as `first`.
        const int d = (p * group + member) * K;
        if (n < N && d < D && !(Row::kReadsFirst && d == 0) && o.sum != nullptr)
          store<K>(o.sum + n * D + d, v);
      }
    }
    const auto statistics = Row::of_held(Held<P, T>{row, first, D, group}, eps);
#pragma unroll
    for (int p = 0; p < P; ++p) {
      const int d = (p * group + member) * K;
      if (n >= N || d >= D) continue;
      T v[K];
      T weight[K];
      T bias[K] = {};
      memcpy(v, &row[p], sizeof(v));
      if (kAdds && Row::kReadsFirst && d == 0 && o.sum != nullptr) store<K>(o.sum + n * D, v);
      load<K>(o.w + d, weight);
      if constexpr (Row::kHasBias) load<K>(o.b + d, bias);
#pragma unroll
      for (int k = 0; k < K; ++k) v[k] = Row::apply(statistics, v[k], weight[k], bias[k]);
      if constexpr (kEncodes) {
        if (o.y != nullptr) store<K>(o.y + n * D + d, v);
        columns[p].add(v);
        memcpy(&row[p], v, sizeof(v));
        continue;
      }
      if (o.y != nullptr) store<K>(o.y + n * D + d, v);
      if (o.to.codes != nullptr) o.to.template store<E4M3>(n * D + d, v);
      if (o.most != nullptr) most = max(most, magnitude_of(v));
    }
    if constexpr (kEncodes) {
      encode_held<E4M3, P, T>(row, n, N, 0, D, RowPlace(group), o.codes);
    }
    if (kEncodes || o.gate.row != nullptr) __syncthreads();
    n += gridDim.x * rows;
  } while ((kEncodes || o.gate.row != nullptr) && n - thread / group < N);
  if constexpr (kEncodes) {
    if (o.codes.columns != nullptr)
      keep_columns<kMostThreads>(columns, D, RowPlace(group), o.codes.columns);
  } else if (o.most != nullptr) {
    block_max(most, o.most);
  }
}

// Does the same for any row: one block per row, which it reads two or three times.
template <bool kAdds, class Row>
__global__ void __launch_bounds__(kThreads)
    norm_of_any(Operands<typename Row::Element> o, int64_t N, int D, typename Row::A eps) {
  using T = typename Row::Element;
  using A = typename Row::A;
  if (o.gate.has_scale()) return;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * D;
  const auto sum_at = [&](int64_t d) {
    return to<T>(to<A>(o.x[at + d]) + to<A>(o.branch[at + d]));
  };
  // A thread reads what it has written.
  const auto x = [&](int64_t d) {
    if constexpr (!kAdds) return o.x[at + d];
    return o.sum == nullptr ? sum_at(d) : o.sum[at + d];
  };
  const auto element = [&](int64_t d) {
    if constexpr (kAdds) {
      if (o.sum != nullptr) o.sum[at + d] = sum_at(d);
    }
    return x(d);
  };
  const auto statistics = Row::of_any(element, x, D, eps);
  if (o.codes.codes != nullptr) {
    const auto value = [&](int64_t d) {
      const T y = Row::apply(statistics, x(d), o.w[d], Row::kHasBias ? o.b[d] : T{});
      if (o.y != nullptr) o.y[at + d] = y;
      return y;
    };
    return encode_any<E4M3>(value, blockIdx.x, N, D, o.codes);
  }
  uint32_t most = 0;
  for (int d = static_cast<int>(threadIdx.x); d < D; d += kThreads) {
    const T y = Row::apply(statistics, x(d), o.w[d], Row::kHasBias ? o.b[d] : T{});
    if (o.y != nullptr) o.y[at + d] = y;
    if (o.to.codes != nullptr) {
      const T v[1] = {y};
      o.to.template store<E4M3>(at + d, v);
    }
    if (o.most != nullptr) most = max(most, magnitude_of(to<float>(y)));
  }
  if (o.most != nullptr) block_max(most, o.most);
}

constexpr int kMany = 4;

// A kernel, and the groups of threads that hold a row.
template <class T>
struct Chosen {
  RowGroups to;
  void (*kernel)(Operands<T>, int64_t, int, int, Accum<T>) = nullptr;
};

// Holds rows as the gradient does, whose y must have the same bits; longer rows take more accesses.
template <bool kAdds, bool kEncodes, class T, bool kZeroCentered>
Chosen<T> choose(RmsRow<T, kZeroCentered>, int64_t packs) {
  using Row = RmsRow<T, kZeroCentered>;
  HeldRows held = held_rows_of(packs);
  if (held.to.threads() == 0) held = {.to = row_groups(packs, kMany, 128), .each = kMany};
  if (held.each == 1) return {held.to, norm_of_held<1, 1024, kAdds, kEncodes, Row>};
  if (held.each == kMany) return {held.to, norm_of_held<kMany, 1024, kAdds, kEncodes, Row>};
  if (held.to.threads() > kFewThreads)
    return {held.to, norm_of_held<2, 1024, kAdds, kEncodes, Row>};
  return {held.to, norm_of_held<2, kFewThreads, kAdds, kEncodes, Row>};
}

template <bool kAdds, bool kEncodes, class T>
Chosen<T> choose(LayerRow<T>, int64_t packs) {
  using Row = LayerRow<T>;
  if (packs <= 32) return {row_groups(packs, 1, 128), norm_of_held<1, 128, kAdds, kEncodes, Row>};
  const RowGroups to = row_groups(packs, kMany, 128);
  if (to.threads() > 256) return {to, norm_of_held<kMany, 1024, kAdds, kEncodes, Row>};
  return {to, norm_of_held<kMany, 256, kAdds, kEncodes, Row>};
}

template <class Row, bool kAdds, class T>
void launch(const Operands<T>& o, int64_t N, int64_t D, Accum<T> eps, bool waits,
            cudaStream_t stream) {
  clear_maxima(o.most, 1, stream);
  clear_maxima(o.codes.columns, D, stream);
  if (N == 0 || D == 0) return store_inverse_of_none<E4M3>(o.to, stream);
  const int width = static_cast<int>(D);
  const int64_t packs = D / Pack<T>::kSize;
  const bool encodes = o.codes.codes != nullptr;
  const bool is_short =
      is_packed<T>(D, o.x, o.branch, o.w, o.b, o.sum, o.y, o.to.codes) && packs <= 1024 * kMany;
  const Chosen<T> chosen = !is_short ? Chosen<T>{}
                           : encodes ? choose<kAdds, true>(Row{}, packs)
                                     : choose<kAdds, false>(Row{}, packs);
  if (!is_short || (encodes && !can_encode_held<T>(o.codes, D, chosen.to.group))) {
    norm_of_any<kAdds, Row><<<static_cast<unsigned>(N), kThreads, 0, stream>>>(o, N, width, eps);
    TOK_CUDA_LAUNCHED();
  } else {
    unsigned blocks = o.codes.blocks_for((N + chosen.to.rows - 1) / chosen.to.rows);
    if (o.gate.row != nullptr) blocks = std::min(blocks, kGatedBlocks);
    launch_dependent(waits, chosen.kernel, blocks, chosen.to.threads(), stream, o, N, width,
                     chosen.to.group, eps);
  }
}

template <class T>
using PlainRmsRow = RmsRow<T, false>;
template <class T>
using ZeroCenteredRmsRow = RmsRow<T, true>;

// Returns the kernel of one kind of norm, which makes of y besides what `fused` wants.
template <template <class> class Row>
Kernel norm_kernel(float eps, const KernelTypes& types, const FusedOutput& fused,
                   const Setup& setup) {
  const int64_t N = rows_of(types.in[0]);
  const int64_t D = types.in[0].dims.back();
  const bool waits = waits_for_few(setup, N);
  return by_float(types.in[0].dtype, [=]<class T>() -> Kernel {
    return [=](const KernelArgs& args) {
      const Operands<T> o{.x = args.in[0].as<T>(),
                          .branch = nullptr,
                          .w = args.in[1].as<T>(),
                          .b = args.has(2) ? args.in[2].as<T>() : nullptr,
                          .sum = nullptr,
                          .y = fused.stores ? args.out[0].as<T>() : nullptr,
                          .most = maximum_of(args, fused.takes_maximum),
                          .codes = codes_of(args, fused),
                          .to = delayed_codes_of(args, fused),
                          .gate = gate_of(args, fused)};
      launch<Row<T>, false>(o, N, D, eps, waits, as_stream(args.stream));
    };
  });
}

template <template <class> class Row>
Kernel add_norm_kernel(float eps, const KernelTypes& types, const FusedOutput& fused,
                       const Setup& setup) {
  const int64_t N = rows_of(types.in[0]);
  const int64_t D = types.in[0].dims.back();
  const bool waits = waits_for_few(setup, N);
  return by_float(types.in[0].dtype, [=]<class T>() -> Kernel {
    return [=](const KernelArgs& args) {
      const Operands<T> o{.x = args.in[0].as<T>(),
                          .branch = args.in[1].as<T>(),
                          .w = args.in[2].as<T>(),
                          .b = args.has(3) ? args.in[3].as<T>() : nullptr,
                          .sum = fused.stores_others ? args.out[0].as<T>() : nullptr,
                          .y = fused.stores ? args.out[1].as<T>() : nullptr,
                          .most = maximum_of(args, fused.takes_maximum),
                          .codes = codes_of(args, fused),
                          .to = delayed_codes_of(args, fused),
                          .gate = gate_of(args, fused)};
      launch<Row<T>, true>(o, N, D, eps, waits, as_stream(args.stream));
    };
  });
}

// Where the gradient's kernel does not make y, the forward's kernel does.
template <bool kZeroCentered>
Kernel rms_gradient_of(const RmsNormGrad& op, const KernelTypes& types, const Setup& setup,
                       bool takes_maximum) {
  const int64_t N = rows_of(types.in[0]);
  const int64_t D = types.in[0].dims.back();
  const bool waits = can_wait_for_previous(setup);
  return by_float(types.out[0].dtype, [=, eps = op.eps, emits_y = op.emits_y]<class T>() -> Kernel {
    return [=](const KernelArgs& args) {
      T* const y = emits_y ? args.out[2].as<T>() : nullptr;
      const RmsGradient<T, kZeroCentered> gradient{static_cast<Accum<T>>(eps)};
      const bool has_y =
          launch_row_sums(gradient, N, D, args, waits, false, y, maximum_of(args, takes_maximum));
      if (has_y || !emits_y) return;
      const Operands<T> o{.x = args.in[0].as<T>(),
                          .branch = nullptr,
                          .w = args.in[1].as<T>(),
                          .b = nullptr,
                          .sum = nullptr,
                          .y = y,
                          .most = nullptr,
                          .codes = {}};
      launch<RmsRow<T, kZeroCentered>, false>(o, N, D, eps, false, as_stream(args.stream));
    };
  });
}

Kernel rms_gradient(const RmsNormGrad& op, const KernelTypes& types, const Setup& setup,
                    bool takes_maximum) {
  return op.zero_centered ? rms_gradient_of<true>(op, types, setup, takes_maximum)
                          : rms_gradient_of<false>(op, types, setup, takes_maximum);
}

Kernel rms_kernel(const RmsNorm& op, const KernelTypes& types, const FusedOutput& fused,
                  const Setup& setup) {
  return op.zero_centered ? norm_kernel<ZeroCenteredRmsRow>(op.eps, types, fused, setup)
                          : norm_kernel<PlainRmsRow>(op.eps, types, fused, setup);
}

Kernel add_rms_kernel(const AddRmsNorm& op, const KernelTypes& types, const FusedOutput& fused,
                      const Setup& setup) {
  return op.zero_centered ? add_norm_kernel<ZeroCenteredRmsRow>(op.eps, types, fused, setup)
                          : add_norm_kernel<PlainRmsRow>(op.eps, types, fused, setup);
}

Kernel layer_gradient(const LayerNormGrad& op, const KernelTypes& types, const Setup& setup,
                      bool takes_maximum) {
  const int64_t N = rows_of(types.in[0]);
  const int64_t D = types.in[0].dims.back();
  return by_float(types.out[0].dtype, [&, eps = op.eps]<class T>() -> Kernel {
    const bool streams = prepare_stream<LayerGradient<T>>(D, *setup.device);
    return [=, waits = can_wait_for_previous(setup)](const KernelArgs& args) {
      launch_row_sums(LayerGradient<T>{static_cast<Accum<T>>(eps)}, N, D, args, waits, streams,
                      static_cast<T*>(nullptr), maximum_of(args, takes_maximum));
    };
  });
}

}  // namespace

Kernel prepare(const RmsNorm& op, const KernelTypes& types, const Setup& setup) {
  return rms_kernel(op, types, {}, setup);
}

Kernel prepare_fused(const RmsNorm& op, const KernelTypes& types, const FusedOutput& fused,
                     const Setup& setup) {
  return rms_kernel(op, types, fused, setup);
}

Kernel prepare(const AddRmsNorm& op, const KernelTypes& types, const Setup& setup) {
  return add_rms_kernel(op, types, {}, setup);
}

Kernel prepare_fused(const AddRmsNorm& op, const KernelTypes& types, const FusedOutput& fused,
                     const Setup& setup) {
  return add_rms_kernel(op, types, fused, setup);
}

Kernel prepare(const RmsNormGrad& op, const KernelTypes& types, const Setup& setup) {
  return rms_gradient(op, types, setup, false);
}

Kernel prepare_fused(const RmsNormGrad& op, const KernelTypes& types, const FusedOutput& fused,
                     const Setup& setup) {
  return rms_gradient(op, types, setup, fused.takes_maximum);
}

Kernel prepare(const LayerNorm& op, const KernelTypes& types, const Setup& setup) {
  return norm_kernel<LayerRow>(op.eps, types, {}, setup);
}

Kernel prepare_fused(const LayerNorm& op, const KernelTypes& types, const FusedOutput& fused,
                     const Setup& setup) {
  return norm_kernel<LayerRow>(op.eps, types, fused, setup);
}

Kernel prepare(const AddLayerNorm& op, const KernelTypes& types, const Setup& setup) {
  return add_norm_kernel<LayerRow>(op.eps, types, {}, setup);
}

Kernel prepare_fused(const AddLayerNorm& op, const KernelTypes& types, const FusedOutput& fused,
                     const Setup& setup) {
  return add_norm_kernel<LayerRow>(op.eps, types, fused, setup);
}

Kernel prepare(const LayerNormGrad& op, const KernelTypes& types, const Setup& setup) {
  return layer_gradient(op, types, setup, false);
}

Kernel prepare_fused(const LayerNormGrad& op, const KernelTypes& types, const FusedOutput& fused,
                     const Setup& setup) {
  return layer_gradient(op, types, setup, fused.takes_maximum);
}

}  // namespace tokamak::gpu
