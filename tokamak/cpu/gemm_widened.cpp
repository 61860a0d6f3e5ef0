#include "tokamak/cpu/gemm_widened.h"

#include <algorithm>
#include <vector>

#include <oneapi/dnnl/dnnl.hpp>

#include "tokamak/core/error.h"
#include "tokamak/cpu/dispatch.h"

namespace tokamak::cpu {
namespace {

// Blocks of A, B and C stay in a second-level cache; widening takes a hundredth of the matmul.
constexpr int64_t kRows = 128;
constexpr int64_t kColumns = 256;
constexpr int64_t kDepth = 512;

struct Span {
  int64_t begin = 0;
  int64_t size = 0;
};

Span block(int64_t index, int64_t step, int64_t whole) {
  const int64_t begin = index * step;
  return {.begin = begin, .size = std::min(step, whole - begin)};
}

// A matrix as it is stored, with `stride` elements per row.
struct Matrix {
  const BF16* data = nullptr;
  int64_t stride = 0;

  void widen(Span rows, Span columns, std::vector<float>& out) const {
    out.resize(rows.size * columns.size);
    for (int64_t i = 0; i < rows.size; ++i) {
      const BF16* from = data + (rows.begin + i) * stride + columns.begin;
      float* to = out.data() + i * columns.size;
#pragma omp simd
      for (int64_t j = 0; j < columns.size; ++j) to[j] = static_cast<float>(from[j]);
    }
  }
};

// The memory that one thread works in.
struct Blocks {
  std::vector<float> a, b, c;
};

// sums[rows, columns] = op(A)[rows, :] op(B)[:, columns], in blocks of the depth one after another.
dnnl::status multiply(const GemmShape& s, const Matrix& a, const Matrix& b, Span rows, Span columns,
                      Blocks& blocks) {
  blocks.c.assign(rows.size * columns.size, 0.0F);
  for (int64_t d = 0; d * kDepth < s.k; ++d) {
    const Span depth = block(d, kDepth, s.k);
    s.transpose_a ? a.widen(depth, rows, blocks.a) : a.widen(rows, depth, blocks.a);
    s.transpose_b ? b.widen(columns, depth, blocks.b) : b.widen(depth, columns, blocks.b);
    const dnnl::status status = dnnl::sgemm(
        s.transpose_a ? 'T' : 'N', s.transpose_b ? 'T' : 'N', rows.size, columns.size, depth.size,
        1.0F, blocks.a.data(), s.transpose_a ? rows.size : depth.size, blocks.b.data(),
        s.transpose_b ? depth.size : columns.size, 1.0F, blocks.c.data(), columns.size);
    if (status != dnnl::status::success) return status;
  }
  return dnnl::status::success;
}

template <class Out>
void store(const GemmShape& s, const std::vector<float>& sums, Span rows, Span columns,
           const BF16* bias, Out* c, bool accumulate) {
  for (int64_t i = 0; i < rows.size; ++i) {
    Out* row = c + (rows.begin + i) * s.n + columns.begin;
    const float* sum = sums.data() + i * columns.size;
    for (int64_t j = 0; j < columns.size; ++j) {
      float value = sum[j];
      if (accumulate) value += static_cast<float>(row[j]);
      if (bias != nullptr) value += static_cast<float>(bias[columns.begin + j]);
      row[j] = static_cast<Out>(value);
    }
  }
}

}  // namespace

void run_widened(const GemmShape& s, const void* a, const void* b, const void* bias, void* c,
                 bool accumulate) {
  TOK_CHECK(s.in == DType::kBF16, "a product of {} is widened", name_of(s.in));
  const Matrix left{.data = static_cast<const BF16*>(a), .stride = s.row_of_a()};
  const Matrix right{.data = static_cast<const BF16*>(b), .stride = s.transpose_b ? s.k : s.n};
  const auto* added = static_cast<const BF16*>(bias);
  const int64_t across = (s.n + kColumns - 1) / kColumns;
  const int64_t count = across * ((s.m + kRows - 1) / kRows);
  std::vector<dnnl::status> statuses(count, dnnl::status::success);
  // Inside the parallel region sgemm uses one thread, so that the order of its sums is fixed.
#pragma omp parallel for schedule(static)
  for (int64_t tile = 0; tile < count; ++tile) {
    thread_local Blocks blocks;
    const Span rows = block(tile / across, kRows, s.m);
    const Span columns = block(tile % across, kColumns, s.n);
    statuses[tile] = multiply(s, left, right, rows, columns, blocks);
    if (s.out == DType::kBF16) {
      store(s, blocks.c, rows, columns, added, static_cast<BF16*>(c), accumulate);
    } else {
      store(s, blocks.c, rows, columns, added, static_cast<float*>(c), accumulate);
    }
  }
  for (const dnnl::status status : statuses)
    TOK_CHECK(status == dnnl::status::success, "sgemm: status {}", static_cast<int>(status));
}

}  // namespace tokamak::cpu
