#include <limits>

#include "tokamak/gpu/cudnn_attention.h"
#include "tokamak/ops/attention_gpu.cuh"

namespace tokamak::gpu {
namespace {

Problem problem_of(const Attention& op, const KernelTypes& types) {
  const AttentionShape s = AttentionShape::of(types.in[0], types.in[1]);
  const double scale =
      op.scale != 0.0F ? static_cast<double>(op.scale) : 1.0 / std::sqrt(static_cast<double>(s.D));
  return {.B = s.B,
          .S = s.S,
          .T = s.T,
          .H = s.H,
          .K = s.K,
          .D = s.D,
          .G = s.group(),
          .scale = scale,
          .is_causal = op.causal,
          .drops = op.dropout_p > 0.0,
          .key = dropout_key(op.seed, op.stream),
          .threshold = dropout_threshold(op.dropout_p),
          .kept = 1.0 / (1.0 - op.dropout_p),
          .first_head = op.first_head,
          .first_query = op.first_query,
          .first_key = op.first_key};
}

Kernel prepare_cudnn(const Attention& op, const KernelTypes& types, const Setup& setup,
                     bool backward) {
  const AttentionShape shape = AttentionShape::of(types.in[0], types.in[1]);
  const CudnnAttention wanted{.shape = shape,
                              .scale = static_cast<float>(problem_of(op, types).scale),
                              .causal = op.causal,
                              .backward = backward,
                              .deterministic = backward && setup.deterministic};
  return prepare_cudnn_attention(
      wanted, cudnn_attention_bytes(shape, backward, setup.deterministic), *setup.device);
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

template <class F>
void allow_shared(F* kernel, int bytes) {
  TOK_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
}

// A block for each of `tiles` tiles of each key-value head of each sample.
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
Kernel make_forward(const Attention& op, const Problem& problem) {
  using A = Accum<T>;
  constexpr int kN = kForwardTile<A, kD>;
  constexpr int kShared = kForwardBytes<A, kD>;
  allow_shared(&attention_forward<T, kD>, kShared);
  return [problem, has_length = op.has_length](const KernelArgs& a) {
    Problem p = problem;
    if (has_length) {
      p.lengths = a.in[3].as<int32_t>();
      p.one_length = a.in[3].numel() == 1;
    }
    if (p.drops) p.samples = a.in[3].as<int64_t>();
    launch_tiles(&attention_forward<T, kD>, p, tiles_for(p.S * p.G, kN), kShared, a.stream,
                 a.in[0].as<const T>(), a.in[1].as<const T>(), a.in[2].as<const T>(),
                 a.out[0].as<T>(), a.out[1].as<A>());
  };
}

Statistics statistics_of(const Tensor& t) {
  return {.data = t.data, .is_double = t.type.dtype == DType::kF64};
}

template <class T, int kD>
Kernel make_backward(const AttentionGrad& op, const Problem& problem) {
  using A = Accum<T>;
  constexpr int kN = kBackwardTile<A, kD>;
  constexpr int kShared = kBackwardBytes<A, kD>;
  allow_shared(&attention_grad_queries<T, kD>, kShared);
  allow_shared(&attention_grad_keys<T, kD>, kShared);
  return [problem, has_dlse = op.has_dlse](const KernelArgs& a) {
    Problem p = problem;
    if (p.drops) p.samples = a.in[6].as<int64_t>();
    const Statistics lse = statistics_of(a.in[4]);
    const Statistics dlse = has_dlse ? statistics_of(a.in.back()) : Statistics{};
    auto* delta = static_cast<A*>(a.workspace);
    const T* q = a.in[0].as<const T>();
    const T* k = a.in[1].as<const T>();
    const T* v = a.in[2].as<const T>();
    const T* dy = a.in[5].as<const T>();
    const int64_t rows = p.B * p.S * p.H;
    if (rows > 0) {
      attention_delta<T><<<blocks_for(rows * 32), kThreads, 0, as_stream(a.stream)>>>(
          p, rows, a.in[3].as<const T>(), dy, dlse, delta);
      TOK_CUDA_LAUNCHED();
    }
    launch_tiles(&attention_grad_queries<T, kD>, p, tiles_for(p.S * p.G, kN), kShared, a.stream, q,
                 k, v, dy, lse, delta, a.out[0].as<T>());
    launch_tiles(&attention_grad_keys<T, kD>, p, tiles_for(p.T, kN), kShared, a.stream, q, k, v, dy,
                 lse, delta, a.out[1].as<T>(), a.out[2].as<T>());
  };
}

}  // namespace

Kernel prepare(const Attention& op, const KernelTypes& types, const Setup& setup) {
  if (setup.variant != kGpuKernel.name) {
    if (Kernel kernel = prepare_cudnn(op, types, setup, false)) return kernel;
  }
  const Problem problem = problem_of(op, types);
  return by_float_and_dim(types.in[0].dtype, problem.D, [&]<class T, int kD>() -> Kernel {
    return make_forward<T, kD>(op, problem);
  });
}

Kernel prepare(const AttentionGrad& op, const KernelTypes& types, const Setup& setup) {
  if (setup.variant != kGpuKernel.name) {
    if (Kernel kernel = prepare_cudnn(op.forward, types, setup, true)) return kernel;
  }
  const Problem problem = problem_of(op.forward, types);
  return by_float_and_dim(types.in[0].dtype, problem.D, [&]<class T, int kD>() -> Kernel {
    return make_backward<T, kD>(op, problem);
  });
}

}  // namespace tokamak::gpu
