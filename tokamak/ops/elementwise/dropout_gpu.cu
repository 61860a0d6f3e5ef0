#include "tokamak/gpu/dispatch.cuh"
#include "tokamak/gpu/divisor.cuh"
#include "tokamak/ops/elementwise/dropout.h"

namespace tokamak::gpu {
namespace {

// How the elements of x are counted: in runs of C, R of them per sample. Run r of all belongs to
// sample r / R and counts from 0, or by position from positions[r] columns + first_column.
struct Mask {
  const int64_t* rows;
  const int32_t* positions;
  Divisor C;
  Divisor R;
  int64_t columns;
  int64_t first_column;
  uint64_t key;
  uint32_t threshold;
};

// y = x scale where word[element % 4] of philox(key, element / 4, row) reaches the threshold, else
// 0; two accesses and a quarter of a philox block per element.
template <class T>
struct Drop {
  using Element = T;
  const T* x;
  T* y;
  Accum<T> scale;
  Mask mask;

  // Handles K elements of one run; if K is a multiple of 4, from the first word of a block on.
  template <int K>
  __device__ void operator()(int64_t i) const {
    T v[K];
    load<K>(x + i, v);
    const int64_t run = mask.C.quotient(i);
    const auto row = static_cast<uint64_t>(mask.rows[mask.R.quotient(run)]);
    int64_t first = i - run * mask.C.value();
    if (mask.positions != nullptr) first += mask.positions[run] * mask.columns + mask.first_column;
    const auto e = static_cast<uint64_t>(first);
    if constexpr (K % 4 == 0) {
#pragma unroll
      for (int k = 0; k < K; k += 4) {
        const auto word = philox(mask.key, e / 4 + k / 4, row);
#pragma unroll
        for (int j = 0; j < 4; ++j) v[k + j] = keep(word[j], v[k + j]);
      }
    } else {
#pragma unroll
      for (int k = 0; k < K; ++k) {
        const auto word = philox(mask.key, (e + k) / 4, row);
        const auto j = static_cast<uint32_t>(e + k) % 4;
        v[k] = keep(j < 2 ? (j == 0 ? word[0] : word[1]) : (j == 2 ? word[2] : word[3]), v[k]);
      }
    }
    store<K>(y + i, v);
  }

  __device__ T keep(uint32_t word, T v) const {
    return to<T>(word >= mask.threshold ? to<Accum<T>>(v) * scale : Accum<T>{0});
  }
};

}  // namespace

// B samples of E elements.

Kernel prepare(const Dropout& op, const KernelTypes& types, const Setup&) {
  const bool by_position = types.in.size() > 2;
  const Dims& dims = types.in[0].dims;
  const int64_t E = dims[0] == 0 ? 0 : types.in[0].numel() / dims[0];
  const int64_t C = std::max<int64_t>(1, by_position ? dims[2] : E);
  const Mask mask{.rows = nullptr,
                  .positions = nullptr,
                  .C = Divisor(C),
                  .R = Divisor(by_position ? std::max<int64_t>(1, dims[1]) : 1),
                  .columns = op.columns > 0 ? op.columns : C,
                  .first_column = op.first_column,
                  .key = dropout_key(op.seed, op.stream),
                  .threshold = dropout_threshold(op.p)};
  return by_float(types.out[0].dtype, [&, p = op.p]<class T>() -> Kernel {
    constexpr int kSize = Pack<T>::kSize;
    // A pack lies in one run and in whole blocks of four words.
    const bool is_even =
        C % kSize == 0 && (!by_position || (mask.columns % 4 == 0 && mask.first_column % 4 == 0));
    return [=](const KernelArgs& args) {
      Drop<T> drop{args.in[0].as<T>(), args.out[0].as<T>(), static_cast<Accum<T>>(1.0 / (1.0 - p)),
                   mask};
      drop.mask.rows = args.in[1].as<int64_t>();
      if (by_position) drop.mask.positions = args.in[2].as<int32_t>();
      const int64_t n = args.out[0].numel();
      if (is_even) {
        launch_vectors(n, args.stream, drop, drop.x, drop.y);
      } else {
        launch_for(n, args.stream, detail::Chunks<Drop<T>, 1>{drop});
      }
    };
  });
}

}  // namespace tokamak::gpu
