// The gradient of attention in blocks: five matmuls per pair of blocks.
#pragma once

#include "tokamak/ops/attention/attention_fast_cpu.h"

namespace tokamak::cpu::fast {

/// Runs one call's backward pass on one thread.
template <class T>
class Backward {
 public:
  using E = Element<T>;

  Backward(const AttentionSetup& u, const KernelArgs& a, int part)
      : u_(u), a_(a), space_(u.s), width_(round_up(u.s.D, 16)) {
    Scratch scratch(a.workspace, space_.backward(), part);
    keys_t_ = scratch.take<E>(space_.keys);
    values_t_ = scratch.take<E>(space_.keys);
    keys_ = scratch.take<E>(space_.keys);
    dk_ = scratch.take<float>(space_.keys);
    dv_ = scratch.take<float>(space_.keys);
    q_rows_ = scratch.take<E>(space_.queries);
    dy_rows_ = scratch.take<E>(space_.queries);
    q_ = scratch.take<E>(space_.queries);
    dy_ = scratch.take<E>(space_.queries);
    dq_ = scratch.take<float>(space_.queries);
    rows_ = scratch.take<E>(space_.queries);
    p_ = scratch.take<float>(space_.scores);
    ds_ = scratch.take<float>(space_.scores);
    p_left_ = scratch.take<E>(space_.scores);
    ds_left_ = scratch.take<E>(space_.scores);
    ds_transposed_ = scratch.take<E>(space_.scores);
    lse_ = scratch.take<float>(kQueryBlock);
    delta_ = scratch.take<float>(kQueryBlock);
  }

  void run(int64_t b, int64_t kv) {
    const AttentionShape& s = u_.s;
    Head<T> head{.stride = s.kv_step(), .D = s.D, .width = width_};
    head.data = s.part<T>(a_.in, 2) + u_.k_at(b, 0, kv);
    head.transpose(s.T, values_t_, rows_);
    head.data = s.part<T>(a_.in, 1) + u_.k_at(b, 0, kv);
    head.transpose(s.T, keys_t_, rows_);
    head.stack(s.T, keys_);
    std::fill(dk_, dk_ + space_.keys, 0.0F);
    std::fill(dv_, dv_ + space_.keys, 0.0F);
    for (int64_t h = kv * s.group(); h < (kv + 1) * s.group(); ++h) {
      for (int64_t i0 = 0; i0 < s.S; i0 += kQueryBlock) block(b, h, i0, head);
    }
    const auto scale = static_cast<float>(u_.scale);
    for (int64_t j = 0; j < s.T; ++j) {
      write(dk_ + j * width_, scale, s.part<T>(a_.out, 1) + u_.k_at(b, j, kv));
      write(dv_ + j * width_, 1.0F, s.part<T>(a_.out, 2) + u_.k_at(b, j, kv));
    }
  }

 private:
  void write(const float* from, float scale, T* to) const {
    tile::scale_row(from, u_.s.D, scale, to);
  }

  float statistic(const Tensor& t, int64_t i) const {
    return t.type.dtype == DType::kF64 ? static_cast<float>(t.as<double>()[i]) : t.as<float>()[i];
  }

  void load_queries(int64_t b, int64_t h, int64_t i0, int64_t M) {
    const AttentionShape& s = u_.s;
    const auto of_output = [&](size_t i) {
      return Rows<T>{
          .data = a_.in[i].as<T>() + u_.o_at(b, i0, h), .stride = s.H * s.D, .count = M, .D = s.D};
    };
    const Rows<T> q{.data = s.part<T>(a_.in, 0) + u_.q_at(b, i0, h),
                    .stride = s.q_step(),
                    .count = M,
                    .D = s.D};
    const Rows<T> all_o = of_output(u_.in.o);
    const Rows<T> all_dy = of_output(u_.in.dy);
    tile::copy_rows(q, q_rows_);
    tile::copy_rows(all_dy, dy_rows_);
    tile::stack_rows(q, kQueryBlock, width_, q_);
    tile::stack_rows(all_dy, kQueryBlock, width_, dy_);
    std::fill(dq_, dq_ + M * width_, 0.0F);
    const bool has_dlse = u_.in.dlse != AttentionInputs::kNone;
    for (int64_t i = 0; i < M; ++i) {
      const T* o = all_o.data + i * all_o.stride;
      const T* dy = all_dy.data + i * all_dy.stride;
      const int64_t stat = (b * s.H + h) * s.S + i0 + i;
      const float delta = tile::dot(o, dy, s.D);
      delta_[i] = has_dlse ? delta - statistic(a_.in[u_.in.dlse], stat) : delta;
      lse_[i] = static_cast<float>(static_cast<double>(statistic(a_.in[u_.in.lse], stat)) * kLog2E);
    }
  }

  // Turns scores into P (with dropout) and dP into dS for keys from `begin` to before `end`.
  template <bool kCaps>
  [[gnu::always_inline]] void score_row(int64_t i, const Scores& scoring, int64_t begin,
                                        int64_t end, const float* kept) {
    float* p_row = p_ + i * kKeyBlock;
    float* ds_row = ds_ + i * kKeyBlock;
    for (int64_t n = 0; n < kKeyBlock; n += kLanes) {
      Vec score = tile::load(p_row + n) * scoring.scale;
      Vec share{};  // of the cap
      if constexpr (kCaps) {
        share = tile::tanh(score / scoring.cap);
        score = share * scoring.cap;
      }
      Vec p = tile::exp2(score - lse_[i]);
      if (end < kKeyBlock) p = tile::first(p, end - n, Vec{});
      if (begin > 0) p = tile::first(Vec{}, begin - n, p);
      Vec dp = tile::load(ds_row + n);
      if (kept != nullptr) dp *= tile::load(kept + n);
      Vec ds = p * (dp - delta_[i]);
      if constexpr (kCaps) ds *= 1.0F - share * share;
      if (end < kKeyBlock) ds = tile::first(ds, end - n, Vec{});
      if (begin > 0) ds = tile::first(Vec{}, begin - n, ds);
      tile::store(ds_row + n, ds);
      tile::store(p_row + n, kept != nullptr ? p * tile::load(kept + n) : p);
    }
  }

  void make_scores(int64_t b, int64_t h, int64_t i0, int64_t M, int64_t j0, const Head<T>& head) {
    const int64_t D = u_.s.D / kPack<E>;
    const E* keys = keys_t_ + j0 / kKeyBlock * head.transposed_block();
    const E* values = values_t_ + j0 / kKeyBlock * head.transposed_block();
    by_rows(u_, u_.s.T, i0, M, j0, [&](int64_t r, int64_t rows, int64_t n) {
      tile::product(rows, n, D, Strided<E>{.data = q_rows_ + r * D, .row = D, .column = 1}, keys,
                    kKeyBlock, p_ + r * kKeyBlock, kKeyBlock, false);
      tile::product(rows, n, D, Strided<E>{.data = dy_rows_ + r * D, .row = D, .column = 1}, values,
                    kKeyBlock, ds_ + r * kKeyBlock, kKeyBlock, false);
    });
    const Scores scoring(u_);
    float kept[kKeyBlock];
    const bool drops = u_.op.dropout_p > 0.0;
    for (int64_t i = 0; i < M; ++i) {
      if (drops) dropout_row(u_, u_.row(a_, b), h, i0 + i, j0, kept);
      const int64_t begin = u_.begin(u_.s.T, i0 + i) - j0;
      const int64_t end = u_.end(u_.s.T, i0 + i) - j0;
      if (scoring.cap > 0.0F) {
        score_row<true>(i, scoring, begin, end, drops ? kept : nullptr);
      } else {
        score_row<false>(i, scoring, begin, end, drops ? kept : nullptr);
      }
    }
    if (M % 2 == 1) {
      std::fill(p_ + M * kKeyBlock, p_ + (M + 1) * kKeyBlock, 0.0F);
      std::fill(ds_ + M * kKeyBlock, ds_ + (M + 1) * kKeyBlock, 0.0F);
    }
  }

  // Adds to dK and dV of a block, by groups of keys that the same queries see.
  void add_to_keys(int64_t i0, int64_t M, int64_t j0) {
    const AttentionShape& s = u_.s;
    const int64_t W = width_;
    const Strided<E> p = as_left_transposed(p_, M, p_left_);
    const Strided<E> ds = as_left_transposed(ds_, M, ds_transposed_);
    const int64_t keys = std::min(kKeyBlock, s.T - j0);
    const int64_t group = u_.end(s.T, i0) - j0 >= kKeyBlock ? kKeyBlock : kGroup;
    for (int64_t c = 0; c < keys; c += group) {
      const int64_t first = u_.op.causal ? std::max<int64_t>(j0 + c - (s.T - s.S) - i0, 0) : 0;
      if (first >= M) break;
      const int64_t k0 = first / kPack<E>;
      const int64_t K = (M + kPack<E> - 1) / kPack<E> - k0;
      const int64_t count = std::min(group, keys - c);
      const auto left = [&](const Strided<E>& x) {
        return Strided<E>{.data = x.data + c + k0 * x.column, .row = 1, .column = x.column};
      };
      const int64_t to = (j0 + c) * W;
      tile::product(count, W, K, left(p), dy_ + k0 * W, W, dv_ + to, W, true);
      tile::product(count, W, K, left(ds), q_ + k0 * W, W, dk_ + to, W, true);
    }
  }

  void block(int64_t b, int64_t h, int64_t i0, const Head<T>& head) {
    const AttentionShape& s = u_.s;
    const int64_t M = std::min(kQueryBlock, s.S - i0);
    const int64_t W = width_;
    load_queries(b, h, i0, M);
    const int64_t end = u_.end(s.T, i0 + M - 1);
    for (int64_t j0 = first_block(u_, s.T, i0); j0 < end; j0 += kKeyBlock) {
      make_scores(b, h, i0, M, j0, head);
      add_to_keys(i0, M, j0);
      const E* keys = keys_ + j0 / kKeyBlock * head.stacked_block();
      const Strided<E> ds = as_left(ds_, M, ds_left_);
      by_rows(u_, s.T, i0, M, j0, [&](int64_t r, int64_t rows, int64_t n) {
        tile::product(rows, W, n / kPack<E>,
                      Strided<E>{.data = ds.data + r * ds.row, .row = ds.row, .column = 1}, keys, W,
                      dq_ + r * W, W, true);
      });
    }
    for (int64_t i = 0; i < M; ++i) {
      write(dq_ + i * W, static_cast<float>(u_.scale),
            s.part<T>(a_.out, 0) + u_.q_at(b, i0 + i, h));
    }
  }

  const AttentionSetup& u_;
  const KernelArgs& a_;
  AttentionWorkspace space_;
  int64_t width_;
  E* keys_t_;
  E* values_t_;
  E* keys_;
  float* dk_;
  float* dv_;
  E* q_rows_;
  E* dy_rows_;
  E* q_;
  E* dy_;
  float* dq_;
  E* rows_;
  float* p_;
  float* ds_;
  E* p_left_;
  E* ds_left_;
  E* ds_transposed_;
  float* lse_;
  float* delta_;
};

template <class T>
void backward(const AttentionSetup& u, const KernelArgs& a) {
  parallel_ranges(u.s.B * u.s.K, 1, [&](int64_t begin, int64_t end, int part) {
    Backward<T> pass(u, a, part);
    for (int64_t r = begin; r < end; ++r) pass.run(r / u.s.K, r % u.s.K);
  });
}

}  // namespace tokamak::cpu::fast
