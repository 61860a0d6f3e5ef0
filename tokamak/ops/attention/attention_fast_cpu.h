// Attention in blocks of queries and keys that stay in the cache: P is never stored, but recomputed
// from lse for the gradient. A thread owns whole key-value heads, so sums keep their order.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "tokamak/cpu/dispatch.h"
#include "tokamak/cpu/philox.h"
#include "tokamak/ops/attention/attention_blocks.h"
#include "tokamak/ops/attention/attention_setup_cpu.h"
#include "tokamak/ops/attention/attention_tile_cpu.h"

namespace tokamak::cpu::fast {

using tile::Element;
using tile::kLanes;
using tile::kPack;
using tile::Rows;
using tile::Strided;
using tile::Vec;

inline constexpr int64_t kGroup = 16;
inline constexpr float kNone = -std::numeric_limits<float>::infinity();
inline constexpr double kLog2E = 1.4426950408889634;
inline constexpr int64_t kVectors = kKeyBlock / kLanes;

/// Calls f(first row, rows, keys) for groups of a block's M rows; `keys` is how many of the block's
/// keys the group's last row sees, rounded up to vectors.
template <class F>
void by_rows(const AttentionSetup& u, int64_t length, int64_t i0, int64_t M, int64_t j0, F&& f) {
  if (u.end(length, i0) - j0 >= kKeyBlock) {
    f(int64_t{0}, M, kKeyBlock);
    return;
  }
  for (int64_t r = 0; r < M; r += kGroup) {
    const int64_t rows = std::min(kGroup, M - r);
    const int64_t keys = round_up(u.end(length, i0 + r + rows - 1) - j0, kLanes);
    if (keys > 0) f(r, rows, std::min(keys, kKeyBlock));
  }
}

/// Returns where the first block of keys that query i sees begins.
inline int64_t first_block(const AttentionSetup& u, int64_t length, int64_t i) {
  return u.begin(length, i) / kKeyBlock * kKeyBlock;
}

/// A thread's workspace, handed out in pieces.
class Scratch {
 public:
  Scratch(void* workspace, int64_t words_per_thread, int part)
      : next_(static_cast<uint32_t*>(workspace) + words_per_thread * part) {}

  template <class E>
  E* take(int64_t words) {
    uint32_t* piece = next_;
    next_ += words;
    return reinterpret_cast<E*>(piece);
  }

 private:
  uint32_t* next_;
};

/// Fills in dropout's factors for a block's row of P: elements (h, i, j0 ..) of sample `row`.
inline void dropout_row(const AttentionSetup& u, int64_t row, int64_t h, int64_t i, int64_t j0,
                        float* kept) {
  static_assert(kKeyBlock + 4 <= kPhiloxWords);
  const uint64_t e =
      attention_element(u.op.first_head + h, u.op.first_query + i, u.op.first_key + j0);
  PhiloxBlock words;
  philox_block(u.key, e / 4, static_cast<uint64_t>(row), words);
  const auto scale = static_cast<float>(1.0 / (1.0 - u.op.dropout_p));
  const uint32_t* word = words.data() + e % 4;
  for (int64_t j = 0; j < kKeyBlock; ++j) kept[j] = word[j] >= u.threshold ? scale : 0.0F;
}

/// Scores in units of log2 from products of queries and keys.
struct Scores {
  float scale = 0.0F;
  float cap = 0.0F;

  explicit Scores(const AttentionSetup& u)
      : scale(static_cast<float>(u.scale * kLog2E)), cap(static_cast<float>(u.op.cap * kLog2E)) {}

  /// Caps `rows` rows of products where scores are capped; scales them then, too.
  void cap_rows(float* rows, int64_t count) const {
    if (cap == 0.0F) return;
    for (int64_t i = 0; i < count * kKeyBlock; i += kLanes)
      tile::store(rows + i, tile::tanh(tile::load(rows + i) * (scale / cap)) * cap);
  }

  /// Returns what the rows must still be multiplied by.
  float rest() const { return cap == 0.0F ? scale : 1.0F; }
};

/// The online softmax of a block of queries.
struct Softmax {
  float* max = nullptr;   ///< of log2(P), kNone before the first key
  float* sums = nullptr;  ///< one vector per row
  float* o = nullptr;
  int64_t width = 0;

  void start(int64_t rows) const {
    std::fill(max, max + rows, kNone);
    std::fill(sums, sums + rows * kLanes, 0.0F);
    std::fill(o, o + rows * width, 0.0F);
  }

  /// Turns scores of keys from `begin` to before `end` into P (zero for the others), in place.
  void row(int64_t r, float* scores, float scale, int64_t begin, int64_t end) const {
    const Vec none = tile::broadcast(kNone);
    Vec x[kVectors];
    for (int64_t n = 0; n < kVectors; ++n) {
      x[n] = tile::load(scores + n * kLanes) * scale;
      if (end < kKeyBlock) x[n] = tile::first(x[n], end - n * kLanes, none);
      if (begin > 0) x[n] = tile::first(none, begin - n * kLanes, x[n]);
    }
    Vec top = x[0];
    for (int64_t n = 1; n < kVectors; ++n) top = tile::max(top, x[n]);
    const float block_max = tile::largest(top);
    if (block_max > max[r]) rescale(r, block_max);
    Vec sum = tile::load(sums + r * kLanes);
    for (int64_t n = 0; n < kVectors; ++n) {
      Vec p = tile::exp2(x[n] - max[r]);
      if (end < kKeyBlock) p = tile::first(p, end - n * kLanes, Vec{});
      if (begin > 0) p = tile::first(Vec{}, begin - n * kLanes, p);
      sum += p;
      tile::store(scores + n * kLanes, p);
    }
    tile::store(sums + r * kLanes, sum);
  }

  void rescale(int64_t r, float new_max) const {
    const float factor = max[r] == kNone ? 0.0F : tile::exp2(max[r] - new_max);
    max[r] = new_max;
    tile::store(sums + r * kLanes, tile::load(sums + r * kLanes) * factor);
    float* row = o + r * width;
    for (int64_t d = 0; d < width; d += kLanes) tile::store(row + d, tile::load(row + d) * factor);
  }

  /// Writes row r of o and returns its lse.
  template <class T>
  float finish(int64_t r, T* to, int64_t D) const {
    const float total = tile::sum(tile::load(sums + r * kLanes));
    const float inverse = total > 0.0F ? 1.0F / total : 0.0F;
    tile::scale_row(o + r * width, D, inverse, to);
    if (total == 0.0F) return -std::numeric_limits<float>::infinity();
    return static_cast<float>(static_cast<double>(max[r]) / kLog2E) + std::log(total);
  }
};

/// Returns a block's rows of P as the left operand of a matmul over keys; float rows stay in place.
template <class E>
Strided<E> as_left(const float* p, int64_t rows, E* space) {
  if constexpr (std::is_same_v<E, tile::Pair>) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < kKeyBlock; j += 2 * kLanes) {
        const float* from = p + i * kKeyBlock + j;
        tile::store_bf16(space + (i * kKeyBlock + j) / 2, tile::load(from),
                         tile::load(from + kLanes));
      }
    }
    return {.data = space, .row = kKeyBlock / 2, .column = 1};
  } else {
    return {.data = p, .row = kKeyBlock, .column = 1};
  }
}

/// Returns them transposed, for a matmul over queries. REQUIRES: the number of rows is even.
template <class E>
Strided<E> as_left_transposed(const float* p, int64_t rows, E* space) {
  if constexpr (std::is_same_v<E, tile::Pair>) {
    for (int64_t i = 0; i < rows; i += 2) {
      for (int64_t j = 0; j < kKeyBlock; j += kLanes) {
        const float* from = p + i * kKeyBlock + j;
        tile::store_pairs(space + i / 2 * kKeyBlock + j, tile::load(from),
                          tile::load(from + kKeyBlock));
      }
    }
    return {.data = space, .row = 1, .column = kKeyBlock};
  } else {
    return {.data = p, .row = 1, .column = kKeyBlock};
  }
}

/// Keys or values of one head in the layouts that matmuls read, block after block.
template <class T>
struct Head {
  using E = Element<T>;
  const T* data = nullptr;  ///< row 0
  int64_t stride = 0;
  int64_t D = 0;
  int64_t width = 0;  ///< of stacked rows

  int64_t transposed_block() const { return D / kPack<E> * kKeyBlock; }

  int64_t stacked_block() const { return kKeyBlock / kPack<E> * width; }

  Rows<T> block(int64_t j0, int64_t length) const {
    return {.data = data + j0 * stride,
            .stride = stride,
            .count = std::min(kKeyBlock, length - j0),
            .D = D};
  }

  void transpose(int64_t length, E* to, E* rows) const {
    for (int64_t j0 = 0; j0 < length; j0 += kKeyBlock, to += transposed_block()) {
      std::memset(rows, 0, static_cast<size_t>(transposed_block()) * 4);
      tile::copy_rows(block(j0, length), rows);
      tile::transpose<kKeyBlock>(rows, D / kPack<E>, to);
    }
  }

  void stack(int64_t length, E* to) const {
    for (int64_t j0 = 0; j0 < length; j0 += kKeyBlock, to += stacked_block())
      tile::stack_rows(block(j0, length), kKeyBlock, width, to);
  }
};

/// Runs one call's forward pass on one thread.
template <class T>
class Forward {
 public:
  using E = Element<T>;

  Forward(const AttentionSetup& u, const KernelArgs& a, int part)
      : u_(u), a_(a), space_(u.s), width_(round_up(u.s.D, 16)) {
    Scratch scratch(a.workspace, space_.forward(), part);
    keys_ = scratch.take<E>(space_.keys);
    values_ = scratch.take<E>(space_.keys);
    queries_ = scratch.take<E>(space_.queries);
    rows_ = scratch.take<E>(space_.queries);
    softmax_.o = scratch.take<float>(space_.queries);
    scores_ = scratch.take<float>(space_.scores);
    left_ = scratch.take<E>(space_.scores);
    softmax_.max = scratch.take<float>(kQueryBlock);
    softmax_.sums = scratch.take<float>(kLanes * kQueryBlock);
    softmax_.width = width_;
  }

  /// Runs query blocks `first`, first + step, .. of the heads that read key-value head `kv`.
  void run(int64_t b, int64_t kv, int64_t first, int64_t step) {
    const AttentionShape& s = u_.s;
    const int64_t length = u_.length(a_, b);
    Head<T> head{.stride = s.kv_step(), .D = s.D, .width = width_};
    head.data = s.part<T>(a_.in, 1) + u_.k_at(b, 0, kv);
    head.transpose(length, keys_, rows_);
    head.data = s.part<T>(a_.in, 2) + u_.k_at(b, 0, kv);
    head.stack(length, values_);
    for (int64_t h = kv * s.group(); h < (kv + 1) * s.group(); ++h) {
      for (int64_t i0 = first * kQueryBlock; i0 < s.S; i0 += step * kQueryBlock)
        block(b, h, i0, length, head);
    }
  }

 private:
  void block(int64_t b, int64_t h, int64_t i0, int64_t length, const Head<T>& head) {
    const AttentionShape& s = u_.s;
    const int64_t M = std::min(kQueryBlock, s.S - i0);
    const int64_t D = s.D / kPack<E>;
    const T* q = s.part<T>(a_.in, 0) + u_.q_at(b, i0, h);
    tile::copy_rows(Rows<T>{.data = q, .stride = s.q_step(), .count = M, .D = s.D}, queries_);
    const Scores scoring(u_);
    softmax_.start(M);
    const int64_t end = u_.end(length, i0 + M - 1);
    for (int64_t j0 = first_block(u_, length, i0); j0 < end; j0 += kKeyBlock) {
      const E* keys = keys_ + j0 / kKeyBlock * head.transposed_block();
      const E* values = values_ + j0 / kKeyBlock * head.stacked_block();
      by_rows(u_, length, i0, M, j0, [&](int64_t r, int64_t rows, int64_t n) {
        tile::product(rows, n, D, Strided<E>{.data = queries_ + r * D, .row = D, .column = 1}, keys,
                      kKeyBlock, scores_ + r * kKeyBlock, kKeyBlock, false);
      });
      scoring.cap_rows(scores_, M);
      for (int64_t i = 0; i < M; ++i)
        softmax_.row(i, scores_ + i * kKeyBlock, scoring.rest(), u_.begin(length, i0 + i) - j0,
                     u_.end(length, i0 + i) - j0);
      if (u_.op.dropout_p > 0.0) drop(b, h, i0, M, j0);
      const Strided<E> p = as_left(scores_, M, left_);
      by_rows(u_, length, i0, M, j0, [&](int64_t r, int64_t rows, int64_t n) {
        tile::product(rows, width_, n / kPack<E>,
                      Strided<E>{.data = p.data + r * p.row, .row = p.row, .column = 1}, values,
                      width_, softmax_.o + r * width_, width_, true);
      });
    }
    for (int64_t i = 0; i < M; ++i) {
      a_.out[1].as<float>()[(b * s.H + h) * s.S + i0 + i] =
          softmax_.finish(i, a_.out[0].as<T>() + u_.o_at(b, i0 + i, h), s.D);
    }
  }

  void drop(int64_t b, int64_t h, int64_t i0, int64_t M, int64_t j0) {
    float kept[kKeyBlock];
    for (int64_t i = 0; i < M; ++i) {
      dropout_row(u_, u_.row(a_, b), h, i0 + i, j0, kept);
      for (int64_t j = 0; j < kKeyBlock; ++j) scores_[i * kKeyBlock + j] *= kept[j];
    }
  }

  const AttentionSetup& u_;
  const KernelArgs& a_;
  AttentionWorkspace space_;
  int64_t width_;
  E* keys_;
  E* values_;
  E* queries_;
  E* rows_;
  float* scores_;
  E* left_;
  Softmax softmax_;
};

template <class T>
void forward(const AttentionSetup& u, const KernelArgs& a) {
  const int64_t heads = u.s.B * u.s.K;
  const int64_t blocks = (u.s.S + kQueryBlock - 1) / kQueryBlock;
  const int64_t step = std::clamp<int64_t>((num_threads() + heads - 1) / heads, 1, blocks);
  parallel_ranges(heads * step, 1, [&](int64_t begin, int64_t end, int part) {
    Forward<T> pass(u, a, part);
    for (int64_t r = begin; r < end; ++r)
      pass.run(r / step / u.s.K, r / step % u.s.K, r % step, step);
  });
}

}  // namespace tokamak::cpu::fast
