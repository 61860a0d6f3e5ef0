#include "tokamak/gpu/copy.cuh"
#include "tokamak/ops/layout/pack.h"

namespace tokamak::gpu {
namespace {

// A tensor seen as [outer, extent, inner] around `dim`.
struct Runs {
  int64_t outer = 1;
  int64_t extent = 0;
  int64_t inner = 1;

  Runs(const TensorType& type, int dim) : extent(type.dims[dim]) {
    for (int d = 0; d < static_cast<int>(type.dims.size()); ++d) {
      if (d != dim) (d < dim ? outer : inner) *= type.dims[d];
    }
  }
};

// Returns copies, chunk by chunk, that make piece k of a cut dim row k of rows of `row_bytes`.
std::vector<Copy> piece_copies(const TensorType& whole, int dim, const std::vector<int64_t>& sizes,
                               const std::vector<int>& order, int64_t row_bytes) {
  const Runs runs(whole, dim);
  const int64_t inner = runs.inner * size_of(whole.dtype);
  // Where chunk j of the pieces laid end to end lies in the whole.
  std::vector<int64_t> chunk_begins(order.size());
  const int64_t chunk = order.empty() ? 0 : runs.extent / static_cast<int64_t>(order.size());
  for (size_t j = 0; j < order.size(); ++j)
    chunk_begins[order[j]] = static_cast<int64_t>(j) * chunk;
  std::vector<Copy> copies;
  int64_t begin = 0;
  for (size_t k = 0; k < sizes.size(); ++k) {
    const int64_t step = order.empty() ? sizes[k] : chunk;
    for (int64_t at = 0; at < sizes[k]; at += step) {
      const int64_t from = order.empty() ? begin : chunk_begins[(begin + at) / chunk];
      copies.push_back({.count = runs.outer,
                        .bytes = step * inner,
                        .from = from * inner,
                        .from_stride = runs.extent * inner,
                        .to = static_cast<int64_t>(k) * row_bytes + at * inner,
                        .to_stride = sizes[k] * inner});
    }
    begin += sizes[k];
  }
  return copies;
}

constexpr int kParts = 16;

// An input of SumSlices as runs of `length` elements, which begin at `begin` of those of y.
struct Part {
  const void* x = nullptr;
  DType dtype = DType::kF32;
  int64_t begin = 0;
  int64_t length = 0;
};

template <class T, int K, class A>
__device__ inline void add_elements(const Part& part, int64_t i, A (&sum)[K]) {
  T x[K];
  load<K>(static_cast<const T*>(part.x) + i, x);
#pragma unroll
  for (int k = 0; k < K; ++k) sum[k] += static_cast<A>(to<Accum<T>>(x[k]));
}

// y = the sum, in order, of the parts that reach each element, and of y itself if kAdd. Reads each
// part once and writes y once; y may lie on the first part, whose elements are read before.
template <class A, bool kAdd>
struct SumParts {
  using Element = A;
  A* y;
  Divisor run;  // elements of y
  int num;
  Part parts[kParts];

  template <int K>
  __device__ void operator()(int64_t i) const {
    A sum[K] = {};
    if constexpr (kAdd) load<K>(y + i, sum);
    const int64_t r = run.quotient(i);
    const int64_t at = i - r * run.value();
    for (int p = 0; p < num; ++p) {
      const Part& part = parts[p];
      if (at < part.begin || at >= part.begin + part.length) continue;
      const int64_t from = r * part.length + at - part.begin;
      if (part.dtype == DType::kBF16) {
        add_elements<__nv_bfloat16>(part, from, sum);
      } else if (part.dtype == DType::kF32) {
        add_elements<float>(part, from, sum);
      } else {
        add_elements<double>(part, from, sum);
      }
    }
    store<K>(y + i, sum);
  }
};

template <class A, bool kAdd>
void sum_parts(const std::vector<Part>& parts, size_t first, int64_t run, const KernelArgs& args) {
  // This makes whole 16-byte accesses of bf16 too.
  constexpr int kSize = 8;
  SumParts<A, kAdd> f{.y = args.out[0].as<A>(), .run = Divisor(run), .num = 0, .parts = {}};
  auto bits = static_cast<uint64_t>(run);
  bool is_aligned = detail::is_aligned(f.y);
  for (size_t k = first; k < std::min(parts.size(), first + kParts); ++k) {
    Part& part = f.parts[f.num++] = parts[k];
    part.x = args.in[k].data;
    bits |= static_cast<uint64_t>(part.begin | part.length);
    is_aligned = is_aligned && detail::is_aligned(part.x);
  }
  const int64_t n = args.out[0].numel();
  if (is_aligned && bits % kSize == 0) {
    launch_for(n / kSize, args.stream, detail::Chunks<SumParts<A, kAdd>, kSize>{f});
  } else {
    launch_for(n, args.stream, detail::Chunks<SumParts<A, kAdd>, 1>{f});
  }
}

}  // namespace

Kernel prepare(const Split& op, const KernelTypes& types, const Setup&) {
  const int64_t row_bytes = types.out[0].dims[1] * size_of(types.out[0].dtype);
  std::vector<Copy> copies = piece_copies(types.in[0], op.dim, op.sizes, op.order, row_bytes);
  const Runs runs(types.in[0], op.dim);
  for (size_t k = 0; k < op.sizes.size(); ++k) {
    const int64_t filled = runs.outer * op.sizes[k] * runs.inner * size_of(types.in[0].dtype);
    copies.push_back({.in = -1,
                      .bytes = row_bytes - filled,
                      .to = static_cast<int64_t>(k) * row_bytes + filled});
  }
  return copy_kernel(std::move(copies));
}

Kernel prepare(const Join& op, const KernelTypes& types, const Setup&) {
  const int64_t row_bytes = types.in[0].dims[1] * size_of(types.in[0].dtype);
  std::vector<Copy> copies = piece_copies(types.out[0], op.dim, op.sizes, op.order, row_bytes);
  for (Copy& copy : copies) {
    std::swap(copy.from, copy.to);
    std::swap(copy.from_stride, copy.to_stride);
  }
  return copy_kernel(std::move(copies));
}

Kernel prepare(const SliceDim& op, const KernelTypes& types, const Setup&) {
  const Runs runs(types.in[0], op.dim);
  const int64_t inner = runs.inner * size_of(types.in[0].dtype);
  const int64_t bytes = (op.end - op.begin) * inner;
  const int64_t zeros = op.zeros * inner;
  return copy_kernel(
      {{.count = runs.outer,
        .bytes = bytes,
        .from = op.begin * inner,
        .from_stride = runs.extent * inner,
        .to_stride = bytes + zeros},
       {.in = -1, .count = runs.outer, .bytes = zeros, .to = bytes, .to_stride = bytes + zeros}});
}

Kernel prepare(const ConcatDim& op, const KernelTypes& types, const Setup&) {
  const Runs whole(types.out[0], op.dim);
  const int64_t inner = whole.inner * size_of(types.out[0].dtype);
  std::vector<Copy> copies;
  int64_t to = 0;
  for (size_t k = 0; k < types.in.size(); ++k) {
    const int64_t bytes = Runs(types.in[k], op.dim).extent * inner;
    copies.push_back({.in = static_cast<int>(k),
                      .count = whole.outer,
                      .bytes = bytes,
                      .from_stride = bytes,
                      .to = to,
                      .to_stride = whole.extent * inner});
    to += bytes;
  }
  return copy_kernel(std::move(copies));
}

Kernel prepare(const SumSlices& op, const KernelTypes& types, const Setup&) {
  std::vector<Part> parts;
  for (size_t i = 0; i < types.in.size(); ++i) {
    const Runs runs(types.in[i], op.dim);
    parts.push_back({.dtype = types.in[i].dtype,
                     .begin = op.begins[i] * runs.inner,
                     .length = runs.extent * runs.inner});
  }
  const int64_t run = std::max<int64_t>(1, op.extent * Runs(types.in[0], op.dim).inner);
  const auto make = [&]<class A>() -> Kernel {
    return [=](const KernelArgs& args) {
      sum_parts<A, false>(parts, 0, run, args);
      for (size_t k = kParts; k < parts.size(); k += kParts)
        sum_parts<A, true>(parts, k, run, args);
    };
  };
  return types.out[0].dtype == DType::kF64 ? make.operator()<double>() : make.operator()<float>();
}

}  // namespace tokamak::gpu
