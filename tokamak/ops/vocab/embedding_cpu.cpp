#include <algorithm>
#include <cstring>

#include "tokamak/cpu/dispatch.h"
#include "tokamak/ops/vocab/embedding.h"

namespace tokamak::cpu {
namespace {

bool is_row(int64_t row, int64_t V) {
  return row >= 0 && row < V;
}

}  // namespace

// N tokens, V vocabulary, D embed.

Kernel prepare(const Embedding& op, const KernelTypes& types, std::string_view) {
  const int64_t N = types.in[0].numel();
  const int64_t V = types.in[1].dims[0];
  const int64_t first = op.first_row;
  const auto row_bytes = static_cast<size_t>(types.in[1].dims[1] * size_of(types.in[1].dtype));
  return [=](const KernelArgs& a) {
    const int32_t* tokens = a.in[0].as<int32_t>();
    const char* table = a.in[1].as<char>();
    char* y = a.out[0].as<char>();
    parallel_ranges(N, 64, [&](int64_t begin, int64_t end, int) {
      for (int64_t n = begin; n < end; ++n) {
        char* to = y + static_cast<size_t>(n) * row_bytes;
        const int64_t row = tokens[n] - first;
        if (is_row(row, V)) {
          std::memcpy(to, table + static_cast<size_t>(row) * row_bytes, row_bytes);
        } else {
          std::memset(to, 0, row_bytes);
        }
      }
    });
  };
}

// Threads own columns, so each sum runs in token order at any thread count.
Kernel prepare(const EmbeddingGrad& op, const KernelTypes& types, std::string_view) {
  const int64_t N = types.in[0].numel();
  const int64_t V = op.vocab;
  const int64_t first = op.first_row;
  const int64_t D = types.in[1].dims.back();
  return by_float(types.in[1].dtype, [=]<class T>() -> Kernel {
    return [=](const KernelArgs& a) {
      using A = Accum<T>;
      const int32_t* tokens = a.in[0].as<int32_t>();
      const T* dy = a.in[1].as<T>();
      A* dtable = a.out[0].as<A>();
      if (!a.accumulate[0]) {
        parallel_ranges(V * D, 8192, [=](int64_t begin, int64_t end, int) {
          std::fill(dtable + begin, dtable + end, A{0});
        });
      }
      parallel_ranges(D, 64, [=](int64_t begin, int64_t end, int) {
        for (int64_t n = 0; n < N; ++n) {
          const int64_t row = tokens[n] - first;
          if (!is_row(row, V)) continue;
          A* to = dtable + row * D;
          const T* from = dy + n * D;
#pragma omp simd
          for (int64_t d = begin; d < end; ++d) to[d] += static_cast<A>(from[d]);
        }
      });
    };
  });
}

}  // namespace tokamak::cpu
