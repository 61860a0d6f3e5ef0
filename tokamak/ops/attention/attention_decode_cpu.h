// Attention of few queries over a long cache: every key and value is read once for all query heads
// that share it.
#pragma once

#include "tokamak/ops/attention/attention_fast_cpu.h"

namespace tokamak::cpu::fast {

/// Whether the queries that read one key-value head fit one block.
inline bool is_decode(const AttentionSetup& u) {
  return u.s.S <= 4 && u.s.S * u.s.group() <= kQueryBlock && u.op.dropout_p == 0.0;
}

/// Runs one call on one thread.
template <class T>
class Decode {
 public:
  Decode(const AttentionSetup& u, const KernelArgs& a, int part)
      : u_(u), a_(a), width_(round_up(u.s.D, 16)) {
    const AttentionWorkspace space(u.s);
    Scratch scratch(a.workspace, space.forward(), part);
    keys_ = scratch.take<float>(space.keys);
    values_ = scratch.take<float>(space.keys);
    queries_ = scratch.take<float>(space.queries);
    softmax_.o = scratch.take<float>(space.queries);
    scores_ = scratch.take<float>(space.scores);
    softmax_.max = scratch.take<float>(kQueryBlock);
    softmax_.sums = scratch.take<float>(kLanes * kQueryBlock);
    softmax_.width = width_;
  }

  /// Runs query heads [begin, end), which read key-value head `kv`.
  void run(int64_t b, int64_t kv, int64_t begin, int64_t end) {
    const AttentionShape& s = u_.s;
    const int64_t length = u_.length(a_, b);
    const int64_t M = (end - begin) * s.S;
    const Scores scoring(u_);
    for (int64_t h = begin; h < end; ++h) {
      const T* q = s.part<T>(a_.in, 0) + u_.q_at(b, 0, h);
      tile::stack_rows(Rows<T>{.data = q, .stride = s.q_step(), .count = s.S, .D = s.D}, s.S,
                       width_, queries_ + (h - begin) * s.S * width_);
    }
    softmax_.start(M);
    for (int64_t j0 = first_block(u_, length, 0); j0 < length; j0 += kKeyBlock) {
      const int64_t count = std::min(kKeyBlock, length - j0);
      const auto rows = [&](size_t i) {
        return Rows<T>{.data = s.part<T>(a_.in, i) + u_.k_at(b, j0, kv),
                       .stride = s.kv_step(),
                       .count = count,
                       .D = s.D};
      };
      tile::stack_rows(rows(1), count, width_, keys_);
      tile::stack_rows(rows(2), count, width_, values_);
      for (int64_t j = 0; j < count; ++j) {
        for (int64_t r = 0; r < M; ++r)
          scores_[r * kKeyBlock + j] = tile::dot(queries_ + r * width_, keys_ + j * width_, width_);
      }
      scoring.cap_rows(scores_, M);
      for (int64_t r = 0; r < M; ++r) {
        softmax_.row(r, scores_ + r * kKeyBlock, scoring.rest(), u_.begin(length, r % s.S) - j0,
                     u_.end(length, r % s.S) - j0);
      }
      tile::product(M, width_, count,
                    Strided<float>{.data = scores_, .row = kKeyBlock, .column = 1}, values_, width_,
                    softmax_.o, width_, true);
    }
    for (int64_t r = 0; r < M; ++r) {
      const int64_t h = begin + r / s.S;
      const int64_t i = r % s.S;
      a_.out[1].as<float>()[(b * s.H + h) * s.S + i] =
          softmax_.finish(r, a_.out[0].as<T>() + u_.o_at(b, i, h), s.D);
    }
  }

 private:
  const AttentionSetup& u_;
  const KernelArgs& a_;
  int64_t width_;
  float* keys_;
  float* values_;
  float* queries_;
  float* scores_;
  Softmax softmax_;
};

template <class T>
void decode(const AttentionSetup& u, const KernelArgs& a) {
  const int64_t heads = u.s.B * u.s.K;
  const int64_t group = u.s.group();
  const int64_t parts = std::clamp<int64_t>((num_threads() + heads - 1) / heads, 1, group);
  parallel_ranges(heads * parts, 1, [&](int64_t begin, int64_t end, int part) {
    Decode<T> pass(u, a, part);
    for (int64_t r = begin; r < end; ++r) {
      const int64_t kv = r / parts % u.s.K;
      const int64_t p = r % parts;
      pass.run(r / parts / u.s.K, kv, kv * group + group * p / parts,
               kv * group + group * (p + 1) / parts);
    }
  });
}

}  // namespace tokamak::cpu::fast
