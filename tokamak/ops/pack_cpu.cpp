#include <algorithm>
#include <cstring>

#include "tokamak/cpu/dispatch.h"
#include "tokamak/ops/pack.h"

namespace tokamak::cpu {
namespace {

// Runs of bytes that lie together: a tensor seen as [outer, extent, inner bytes] around `dim`.
struct Runs {
  int64_t outer = 1;
  int64_t extent = 0;
  int64_t inner = 1;

  Runs(const TensorType& type, int dim) : extent(type.dims[static_cast<size_t>(dim)]) {
    for (int d = 0; d < static_cast<int>(type.dims.size()); ++d) {
      if (d != dim) (d < dim ? outer : inner) *= type.dims[static_cast<size_t>(d)];
    }
    inner *= size_of(type.dtype);
  }
};

// `count` runs of `bytes` from strided places to strided places.
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
        std::memcpy(y + i * to_stride, x + i * from_stride, static_cast<size_t>(bytes));
    });
  }
};

// Piece k of a cut dim as the row k of rows of `row_bytes`.
std::vector<Copy> piece_copies(const Runs& runs, const std::vector<int64_t>& sizes,
                               int64_t row_bytes) {
  std::vector<Copy> copies;
  int64_t begin = 0;
  for (size_t k = 0; k < sizes.size(); ++k) {
    const int64_t bytes = sizes[k] * runs.inner;
    copies.push_back({.count = bytes == 0 ? 0 : runs.outer,
                      .bytes = bytes,
                      .from = begin * runs.inner,
                      .from_stride = runs.extent * runs.inner,
                      .to = static_cast<int64_t>(k) * row_bytes,
                      .to_stride = bytes});
    begin += sizes[k];
  }
  return copies;
}

}  // namespace

Kernel prepare(const Split& op, const KernelTypes& types, std::string_view) {
  const int64_t row_bytes = types.out[0].dims[1] * size_of(types.out[0].dtype);
  const std::vector<Copy> copies = piece_copies(Runs(types.in[0], op.dim), op.sizes, row_bytes);
  return [=](const KernelArgs& a) {
    for (const Copy& copy : copies) {
      copy.run(a.in[0].data, a.out[0].data);
      const int64_t filled = copy.count * copy.bytes;
      std::memset(a.out[0].as<char>() + copy.to + filled, 0,
                  static_cast<size_t>(row_bytes - filled));
    }
  };
}

Kernel prepare(const Join& op, const KernelTypes& types, std::string_view) {
  const int64_t row_bytes = types.in[0].dims[1] * size_of(types.in[0].dtype);
  std::vector<Copy> copies = piece_copies(Runs(types.out[0], op.dim), op.sizes, row_bytes);
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
                  .to_stride = bytes};
  return [=](const KernelArgs& a) { copy.run(a.in[0].data, a.out[0].data); };
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

}  // namespace tokamak::cpu
