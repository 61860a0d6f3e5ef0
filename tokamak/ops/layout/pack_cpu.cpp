#include <algorithm>
#include <cstring>

#include "tokamak/cpu/dispatch.h"
#include "tokamak/ops/layout/pack.h"

namespace tokamak::cpu {
namespace {

// Runs of contiguous bytes: a tensor seen as [outer, extent, inner bytes] around `dim`.
struct Runs {
  int64_t outer = 1;
  int64_t extent = 0;
  int64_t inner = 1;

  Runs(const TensorType& type, int dim) : extent(type.dims[dim]) {
    for (int d = 0; d < static_cast<int>(type.dims.size()); ++d) {
      if (d != dim) (d < dim ? outer : inner) *= type.dims[d];
    }
    inner *= size_of(type.dtype);
  }
};

// Copies `count` runs of `bytes` from strided places to strided places.
struct Copy {
  int64_t count = 0;
  int64_t bytes = 0;
  int64_t from = 0, from_stride = 0;
  int64_t to = 0, to_stride = 0;

  void run(const void* in, void* out) const {
    const int64_t grain = std::max<int64_t>(1, (int64_t{64} << 10U) / std::max<int64_t>(bytes, 1));
    parallel_ranges(count, grain, [&](int64_t begin, int64_t end, int) {
      const char* x = static_cast<const char*>(in) + from;
      char* y = static_cast<char*>(out) + to;
      for (int64_t i = begin; i < end; ++i)
        std::memcpy(y + i * to_stride, x + i * from_stride, bytes);
    });
  }
};

// Returns copies, chunk by chunk, that make piece k of a cut dim row k of rows of `row_bytes`.
std::vector<Copy> piece_copies(const Runs& runs, const std::vector<int64_t>& sizes,
                               std::vector<int> order, int64_t row_bytes) {
  // Where chunk j of the pieces laid end to end lies in the whole.
  std::vector<int64_t> chunk_begins(order.size());
  const bool in_order = order.empty();
  const int64_t chunk = in_order ? 0 : runs.extent / static_cast<int64_t>(order.size());
  for (size_t j = 0; j < order.size(); ++j)
    chunk_begins[order[j]] = static_cast<int64_t>(j) * chunk;
  std::vector<Copy> copies;
  int64_t begin = 0;
  for (size_t k = 0; k < sizes.size(); ++k) {
    const int64_t step = in_order ? sizes[k] : chunk;
    for (int64_t at = 0; at < sizes[k]; at += step) {
      const int64_t from = in_order ? begin : chunk_begins[(begin + at) / chunk];
      copies.push_back({.count = runs.outer,
                        .bytes = step * runs.inner,
                        .from = from * runs.inner,
                        .from_stride = runs.extent * runs.inner,
                        .to = static_cast<int64_t>(k) * row_bytes + at * runs.inner,
                        .to_stride = sizes[k] * runs.inner});
    }
    begin += sizes[k];
  }
  return copies;
}

template <class T, class A>
void add_slice(const Runs& part, int64_t extent, int64_t begin, bool overwrites, const T* x, A* y) {
  const int64_t run = part.extent * part.inner;
  parallel_ranges(part.outer * run, 8192, [=](int64_t first, int64_t last, int) {
    for (int64_t i = first; i < last;) {
      const int64_t o = i / run;
      const int64_t end = std::min(last, (o + 1) * run);
      A* to = y + (o * extent + begin) * part.inner - o * run;
#pragma omp simd
      for (int64_t e = i; e < end; ++e) {
        const auto value = static_cast<A>(static_cast<Accum<T>>(x[e]));
        to[e] = overwrites ? value : to[e] + value;
      }
      i = end;
    }
  });
}

}  // namespace

Kernel prepare(const Split& op, const KernelTypes& types, std::string_view) {
  const int64_t row_bytes = types.out[0].dims[1] * size_of(types.out[0].dtype);
  const std::vector<Copy> copies =
      piece_copies(Runs(types.in[0], op.dim), op.sizes, op.order, row_bytes);
  const Runs runs(types.in[0], op.dim);
  std::vector<int64_t> filled;
  for (const int64_t size : op.sizes) filled.push_back(runs.outer * size * runs.inner);
  return [=](const KernelArgs& a) {
    for (const Copy& copy : copies) copy.run(a.in[0].data, a.out[0].data);
    char* row = a.out[0].as<char>();
    for (size_t k = 0; k < filled.size(); ++k, row += row_bytes)
      std::memset(row + filled[k], 0, row_bytes - filled[k]);
  };
}

Kernel prepare(const Join& op, const KernelTypes& types, std::string_view) {
  const int64_t row_bytes = types.in[0].dims[1] * size_of(types.in[0].dtype);
  std::vector<Copy> copies =
      piece_copies(Runs(types.out[0], op.dim), op.sizes, op.order, row_bytes);
  for (Copy& copy : copies) {
    std::swap(copy.from, copy.to);
    std::swap(copy.from_stride, copy.to_stride);
  }
  return [=](const KernelArgs& a) {
    for (const Copy& copy : copies) copy.run(a.in[0].data, a.out[0].data);
  };
}

Kernel prepare(const SliceDim& op, const KernelTypes& types, std::string_view) {
  const Runs runs(types.in[0], op.dim);
  const int64_t bytes = (op.end - op.begin) * runs.inner;
  const Copy copy{.count = bytes == 0 ? 0 : runs.outer,
                  .bytes = bytes,
                  .from = op.begin * runs.inner,
                  .from_stride = runs.extent * runs.inner,
                  .to_stride = bytes + op.zeros * runs.inner};
  return [=, zeros = op.zeros > 0](const KernelArgs& a) {
    if (zeros) std::memset(a.out[0].data, 0, a.out[0].type.bytes());
    copy.run(a.in[0].data, a.out[0].data);
  };
}

Kernel prepare(const ConcatDim& op, const KernelTypes& types, std::string_view) {
  const Runs whole(types.out[0], op.dim);
  std::vector<Copy> copies;
  int64_t begin = 0;
  for (const TensorType& part : types.in) {
    const int64_t bytes = Runs(part, op.dim).extent * whole.inner;
    copies.push_back({.count = bytes == 0 ? 0 : whole.outer,
                      .bytes = bytes,
                      .from_stride = bytes,
                      .to = begin,
                      .to_stride = whole.extent * whole.inner});
    begin += bytes;
  }
  return [=](const KernelArgs& a) {
    for (size_t k = 0; k < copies.size(); ++k) copies[k].run(a.in[k].data, a.out[0].data);
  };
}

Kernel prepare(const SumSlices& op, const KernelTypes& types, std::string_view) {
  const bool is_double = types.out[0].dtype == DType::kF64;
  const bool is_covered = types.in[0].dims == types.out[0].dims;
  std::vector<Kernel> adds;
  for (size_t i = 0; i < types.in.size(); ++i) {
    Runs part(types.in[i], op.dim);
    part.inner /= size_of(types.in[i].dtype);
    adds.push_back(by_float(types.in[i].dtype, [&]<class T>() -> Kernel {
      return [=, extent = op.extent, begin = op.begins[i]](const KernelArgs& a) {
        const bool first = i == 0 && is_covered;
        if (a.in[i].data == a.out[0].data) return;
        if (is_double) {
          add_slice(part, extent, begin, first, a.in[i].as<T>(), a.out[0].as<double>());
        } else {
          add_slice(part, extent, begin, first, a.in[i].as<T>(), a.out[0].as<float>());
        }
      };
    }));
  }
  return [adds, is_covered](const KernelArgs& a) {
    if (!is_covered) std::memset(a.out[0].data, 0, a.out[0].type.bytes());
    for (const Kernel& add : adds) add(a);
  };
}

}  // namespace tokamak::cpu
