#include "tokamak/cpu/gemm_amx.h"

#include "tokamak/core/error.h"
#include "tokamak/cpu/amx_tiles.h"
#include "tokamak/cpu/parallel.h"

#ifdef TOK_AMX

#include <cstdlib>
#include <memory>

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tokamak::cpu {
namespace {

using namespace amx;

// Operands are packed in pieces of at most so many rows, columns and inner elements, which bounds
// the workspace; each packed element is used once per row or column of the other operand's piece.
constexpr int64_t kMaxRows = 2048;
constexpr int64_t kMaxCols = 2048;
constexpr int64_t kMaxInner = 2048;
// Bytes of B that all rows use in turn, out of the 2 MiB of a core's second-level cache.
constexpr int64_t kCachedBytes = 1280 << 10;
// Steps of a panel of A that all those columns use in turn: 24 of 48 KiB of the first-level cache.
constexpr int64_t kCachedSteps = 12;

constexpr int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// The i-th of n near-equal parts of [0, size) begins here.
constexpr int64_t part_begin(int64_t size, int64_t i, int64_t n) {
  return size * i / n;
}

bool has_tiles() {
  constexpr int64_t kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM of Linux' asm/prctl.h
  constexpr int64_t kTileData = 18;
  static const bool kHas = __builtin_cpu_supports("amx-bf16") &&
                           syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return kHas;
}

// A buffer that grows, on huge pages.
template <class T>
class Workspace {
 public:
  T* take(int64_t elements) {
    if (elements <= size_) return data_.get();
    constexpr int64_t kPage = int64_t{2} << 20;
    const auto bytes =
        static_cast<size_t>(ceil_div(elements * static_cast<int64_t>(sizeof(T)), kPage) * kPage);
    data_.reset(static_cast<T*>(std::aligned_alloc(kPage, bytes)));
    TOK_CHECK(data_, "no memory to pack {} bytes of a product", bytes);
    madvise(data_.get(), bytes, MADV_HUGEPAGE);
    size_ = elements;
    return data_.get();
  }

 private:
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };

  std::unique_ptr<T, Free> data_;
  int64_t size_ = 0;
};

// One per calling thread: ranks may be threads that multiply side by side.
struct Workspaces {
  Workspace<uint16_t> a, b;
  Workspace<float> sums;
};

class Product {
 public:
  Product(const GemmShape& shape, const void* a, const void* b, const void* bias, void* c,
          bool accumulate)
      : s_(shape),
        a_{static_cast<const uint16_t*>(a), s_.row_of_a(), !s_.transpose_a},
        b_{static_cast<const uint16_t*>(b), s_.transpose_b ? s_.k : s_.n, s_.transpose_b},
        bias_(static_cast<const uint16_t*>(bias)),
        c_(c),
        accumulate_(accumulate) {}

  void run() {
    for (col_ = 0; col_ < s_.n; col_ += kMaxCols) {
      cols_ = std::min(kMaxCols, s_.n - col_);
      for (row_ = 0; row_ < s_.m; row_ += kMaxRows) {
        rows_ = std::min(kMaxRows, s_.m - row_);
        for (k_ = 0; k_ < s_.k; k_ += kMaxInner) {
          inner_ = std::min(kMaxInner, s_.k - k_);
          prepare();
          pack();
          parallel_rows(row_parts_ * col_parts_, [this](int64_t part) {
            multiply_part(part / col_parts_, part % col_parts_);
          });
        }
      }
    }
  }

 private:
  int64_t row_panels() const { return ceil_div(rows_, kPanel); }

  int64_t col_panels() const { return ceil_div(cols_, kPanel); }

  int64_t steps() const { return ceil_div(inner_, kDepth); }

  bool is_last_piece() const { return k_ + inner_ == s_.k; }

  // Whether a block's sums wait for the next piece of the inner dimension.
  bool keeps_sums() const { return s_.k > kMaxInner; }

  void prepare() {
    static thread_local Workspaces workspaces;
    row_parts_ = std::min<int64_t>(row_panels(), num_threads());
    col_parts_ = std::min(col_panels(), num_threads() / row_parts_);
    const int64_t a_panels = a_.lanes_are_rows ? row_parts_ * col_parts_ : row_panels();
    packed_a_ = workspaces.a.take(a_panels * steps() * kStep);
    packed_b_ = workspaces.b.take(col_panels() * steps() * kStep);
    const int64_t strips = keeps_sums() ? row_panels() : row_parts_;
    sums_ = workspaces.sums.take(strips * col_panels() * kBlock);
  }

  // The unit of work is what lies together in memory: a panel, or a step of all panels. Contiguous
  // rows of A are packed by the thread that uses them, a panel at a time.
  void pack() const {
    const int64_t a_parts = a_.lanes_are_rows ? 0 : steps();
    const int64_t b_parts = b_.lanes_are_rows ? col_panels() : steps();
    parallel_rows(a_parts + b_parts, [=, this](int64_t part) {
      if (part < a_parts) {
        pack_step_of(a_, row_, rows_, true, part, packed_a_);
      } else {
        pack_b(part - a_parts);
      }
    });
  }

  void pack_b(int64_t part) const {
    if (!b_.lanes_are_rows) {
      pack_step_of(b_, col_, cols_, false, part, packed_b_);
      return;
    }
    for (int64_t step = 0; step < steps(); ++step)
      pack_step(b_, col_ + part * kPanel, cols_ - part * kPanel, k_ + step * kDepth,
                inner_ - step * kDepth, false, packed_b_ + (part * steps() + step) * kStep);
  }

  void pack_step_of(const Operand& x, int64_t first, int64_t lanes, bool rows_are_lanes,
                    int64_t step, uint16_t* out) const {
    for (int64_t panel = 0; panel * kPanel < lanes; ++panel)
      pack_step(x, first + panel * kPanel, lanes - panel * kPanel, k_ + step * kDepth,
                inner_ - step * kDepth, rows_are_lanes, out + (panel * steps() + step) * kStep);
  }

  void multiply_part(int64_t row_part, int64_t col_part) const {
    const TileScope tiles;
    const int64_t begin = part_begin(col_panels(), col_part, col_parts_);
    const int64_t count = part_begin(col_panels(), col_part + 1, col_parts_) - begin;
    const int64_t in_cache = std::max<int64_t>(kCachedBytes / (steps() * kStep * 2), 1);
    const int64_t blocks = ceil_div(count, in_cache);
    const int64_t last = part_begin(row_panels(), row_part + 1, row_parts_);
    for (int64_t block = 0; block < blocks; ++block) {
      for (int64_t i = part_begin(row_panels(), row_part, row_parts_); i < last; ++i)
        multiply_strip(i, begin + part_begin(count, block, blocks),
                       begin + part_begin(count, block + 1, blocks),
                       a_panel(i, row_part * col_parts_ + col_part),
                       sums_ + (keeps_sums() ? i : row_part) * col_panels() * kBlock);
    }
  }

  const uint16_t* a_panel(int64_t i, int64_t part) const {
    const int64_t size = steps() * kStep;
    if (!a_.lanes_are_rows) return packed_a_ + i * size;
    uint16_t* mine = packed_a_ + part * size;
    copy_panel(a_, row_ + i * kPanel, rows_ - i * kPanel, k_, inner_, mine);
    return mine;
  }

  // Multiplies one panel of A by panels [begin, end) of B.
  void multiply_strip(int64_t i, int64_t begin, int64_t end, const uint16_t* a_panel,
                      float* strip) const {
    const int64_t pieces = ceil_div(steps(), kCachedSteps);
    for (int64_t piece = 0; piece < pieces; ++piece) {
      const int64_t step = part_begin(steps(), piece, pieces);
      const int64_t count = part_begin(steps(), piece + 1, pieces) - step;
      for (int64_t j = begin; j < end; ++j) {
        const uint16_t* a = a_panel + step * kStep;
        const uint16_t* b = packed_b_ + (j * steps() + step) * kStep;
        if (pieces == 1 && is_summed_in_place(i, j)) {
          float* c = static_cast<float*>(c_) + (row_ + i * kPanel) * s_.n + col_ + j * kPanel;
          multiply(a, b, count, c, s_.n, accumulate_);
          continue;
        }
        multiply(a, b, count, strip + j * kBlock, kPanel, k_ > 0 || piece > 0);
        if (piece + 1 == pieces && is_last_piece()) write_block(i, j, strip + j * kBlock);
      }
    }
  }

  bool is_summed_in_place(int64_t i, int64_t j) const {
    return s_.out == DType::kF32 && bias_ == nullptr && !keeps_sums() &&
           (i + 1) * kPanel <= rows_ && (j + 1) * kPanel <= cols_;
  }

  void write_block(int64_t i, int64_t j, const float* sums) const {
    const int64_t cols = cols_ - j * kPanel;
    const int64_t col = col_ + j * kPanel;
    const uint16_t* bias = bias_ == nullptr ? nullptr : bias_ + col;
    for (int64_t r = 0; r < std::min(kPanel, rows_ - i * kPanel); ++r) {
      const int64_t at = (row_ + i * kPanel + r) * s_.n + col;
      if (s_.out == DType::kF32) {
        write_row(sums + r * kPanel, bias, cols, accumulate_, static_cast<float*>(c_) + at);
      } else {
        write_row(sums + r * kPanel, bias, cols, accumulate_, static_cast<uint16_t*>(c_) + at);
      }
    }
  }

  const GemmShape& s_;
  Operand a_;
  Operand b_;
  const uint16_t* bias_;
  void* c_;
  bool accumulate_;
  int64_t row_ = 0, col_ = 0, k_ = 0;  // begin of the current piece
  int64_t rows_ = 0, cols_ = 0, inner_ = 0;
  int64_t row_parts_ = 1, col_parts_ = 1;  // for the threads
  uint16_t* packed_a_ = nullptr;           // [panel, step] of two tiles each
  uint16_t* packed_b_ = nullptr;
  float* sums_ = nullptr;  // [strip, column panel, 32, 32]
};

}  // namespace

bool is_for_amx(const GemmShape& s) {
  constexpr int64_t kLeastRows = 512;  // from which packing a plain B pays
  constexpr int64_t kLeast = 64;
  if (s.in != DType::kBF16 || std::min({s.m, s.n, s.k}) < kLeast) return false;
  return (s.transpose_a || (!s.transpose_b && s.m >= kLeastRows)) && has_tiles();
}

void run_amx(const GemmShape& shape, const void* a, const void* b, const void* bias, void* c,
             bool accumulate) {
  Product(shape, a, b, bias, c, accumulate).run();
}

}  // namespace tokamak::cpu

#else

namespace tokamak::cpu {

bool is_for_amx(const GemmShape&) {
  return false;
}

void run_amx(const GemmShape&, const void*, const void*, const void*, void*, bool) {
  TOK_CHECK(false, "built without AMX");
}

}  // namespace tokamak::cpu

#endif
