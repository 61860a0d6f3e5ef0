#include <algorithm>
#include <cstring>

#include "tokamak/ops/float8/fused_float8_gpu.cuh"
#include "tokamak/ops/norm/norm_kernels_gpu.cuh"

namespace tokamak::gpu {
namespace {

// Quantizes y under scales of rows or of their segments; y is stored where it is not null.
template <class T>
struct EncodeRows : NormEpilogue {
  T* y;
  QuantizedRows quantized;

  EncodeRows(T* to, const QuantizedRows& c) : y(to), quantized(c) {}

  template <int P, int K>
  struct Kept {
    ColumnMaxima<K, T> columns[P];
  };

  __device__ bool loops() const { return true; }

  template <int P, int K>
  __device__ void put(Kept<P, K>& kept, int p, int64_t at, const T (&v)[K], uint4& row) const {
    if (y != nullptr) store<K>(y + at, v);
    kept.columns[p].add(v);
    memcpy(&row, v, sizeof(v));
  }

  template <int P>
  __device__ void end_row(const uint4 (&row)[P], int64_t n, int64_t N, int D, int group) const {
    encode_held<E4M3, P, T>(row, n, N, 0, D, RowPlace(group), quantized);
  }

  template <int kMostThreads, class Columns>
  __device__ void end(const Columns& kept, int D, int group) const {
    if (quantized.columns != nullptr)
      keep_columns<kMostThreads>(kept.columns, D, RowPlace(group), quantized.columns);
  }

  template <class Value>
  __device__ void take(const Value& value, int64_t n, int64_t N, int D) const {
    const auto stored = [&](int64_t d) {
      const T v = value(d);
      if (y != nullptr) y[n * D + d] = v;
      return v;
    };
    encode_any<E4M3>(stored, n, N, D, quantized);
  }

  void begin(int64_t D, cudaStream_t stream) const { clear_maxima(quantized.columns, D, stream); }

  bool is_packed(int64_t D) const { return gpu::is_packed<T>(D, y); }

  bool can_hold(int64_t D, int group) const { return can_encode_held<T>(quantized, D, group); }

  unsigned blocks_for(int64_t groups) const { return quantized.blocks_for(groups); }
};

// Takes the greatest magnitude of y, makes its quantized values under a delayed scale, or both;
// stores y where it is not null. With a gate nothing is done if that has a scale.
template <class T>
struct TakeMaximum : NormEpilogue {
  T* y;
  uint32_t* most;
  QuantizedUnderDelayed quantized;
  Delayed gate;

  TakeMaximum(T* to, uint32_t* m, const QuantizedUnderDelayed& c, const Delayed& g)
      : y(to), most(m), quantized(c), gate(g) {}

  template <int P, int K>
  struct Kept {
    uint32_t most = 0;
  };

  __device__ bool is_done() const { return gate.has_scale(); }

  __device__ bool loops() const { return gate.row != nullptr; }

  template <int P, int K>
  __device__ void put(Kept<P, K>& kept, int, int64_t at, const T (&v)[K], uint4&) const {
    if (y != nullptr) store<K>(y + at, v);
    if (quantized.values != nullptr) quantized.template store<E4M3>(at, v);
    if (most != nullptr) kept.most = max(kept.most, magnitude_of(v));
  }

  template <int kMostThreads, class Maximum>
  __device__ void end(const Maximum& kept, int, int) const {
    if (most != nullptr) block_max(kept.most, most);
  }

  template <class Value>
  __device__ void take(const Value& value, int64_t n, int64_t, int D) const {
    const int64_t at = n * D;
    uint32_t greatest = 0;
    for (int d = static_cast<int>(threadIdx.x); d < D; d += kThreads) {
      const T v[1] = {value(d)};
      if (y != nullptr) y[at + d] = v[0];
      if (quantized.values != nullptr) quantized.template store<E4M3>(at + d, v);
      if (most != nullptr) greatest = max(greatest, magnitude_of(to<float>(v[0])));
    }
    if (most != nullptr) block_max(greatest, most);
  }

  void begin(int64_t, cudaStream_t stream) const { clear_maxima(most, 1, stream); }

  void end_empty(cudaStream_t stream) const { store_inverse_of_none<E4M3>(quantized, stream); }

  bool is_packed(int64_t D) const { return gpu::is_packed<T>(D, y, quantized.values); }

  unsigned blocks_for(int64_t groups) const {
    const auto blocks = static_cast<unsigned>(groups);
    return gate.row == nullptr ? blocks : std::min(blocks, kGatedBlocks);
  }
};

// Make the epilogues of a norm whose y is output `y` of the op.
struct MakeEncodeRows {
  FusedOutput fused;
  size_t y;

  template <class T>
  EncodeRows<T> operator()(const KernelArgs& args) const {
    return {fused.stores ? args.out[y].as<T>() : nullptr, quantized_of(args, fused)};
  }
};

struct MakeTakeMaximum {
  FusedOutput fused;
  size_t y;

  template <class T>
  TakeMaximum<T> operator()(const KernelArgs& args) const {
    return {fused.stores ? args.out[y].as<T>() : nullptr, maximum_of(args, fused.takes_maximum),
            delayed_of(args, fused), gate_of(args, fused)};
  }
};

// Calls make(epilogue) with what makes the epilogue that `fused` asks for.
template <class Make>
Kernel with_epilogue(const FusedOutput& fused, size_t y, const Make& make) {
  return fused.quantizes_rows() ? make(MakeEncodeRows{fused, y}) : make(MakeTakeMaximum{fused, y});
}

}  // namespace

Kernel prepare_fused(const RmsNorm& op, const KernelTypes& types, const FusedOutput& fused,
                     const Setup& setup) {
  return with_epilogue(fused, 0,
                       [&](auto make_out) { return rms_norm_kernel(op, types, setup, make_out); });
}

Kernel prepare_fused(const AddRmsNorm& op, const KernelTypes& types, const FusedOutput& fused,
                     const Setup& setup) {
  return with_epilogue(fused, 1, [&](auto make_out) {
    return add_rms_norm_kernel(op, types, setup, fused.stores_others, make_out);
  });
}

Kernel prepare_fused(const RmsNormGrad& op, const KernelTypes& types, const FusedOutput& fused,
                     const Setup& setup) {
  return rms_norm_grad_kernel(op, types, setup, fused.takes_maximum);
}

Kernel prepare_fused(const LayerNorm& op, const KernelTypes& types, const FusedOutput& fused,
                     const Setup& setup) {
  return with_epilogue(fused, 0, [&](auto make_out) {
    return norm_kernel<LayerRow>(op.eps, types, setup, make_out);
  });
}

Kernel prepare_fused(const AddLayerNorm& op, const KernelTypes& types, const FusedOutput& fused,
                     const Setup& setup) {
  return with_epilogue(fused, 1, [&](auto make_out) {
    return add_norm_kernel<LayerRow>(op.eps, types, setup, fused.stores_others, make_out);
  });
}

Kernel prepare_fused(const LayerNormGrad& op, const KernelTypes& types, const FusedOutput& fused,
                     const Setup& setup) {
  return layer_norm_grad_kernel(op, types, setup, fused.takes_maximum);
}

}  // namespace tokamak::gpu
