#include <algorithm>

#include "tokamak/cpu/dispatch.h"
#include "tokamak/cpu/philox.h"
#include "tokamak/cpu/vec_math.h"
#include "tokamak/ops/elementwise/dropout.h"

namespace tokamak::cpu {

namespace {

// Drops among `count` elements of one sample, counted from `first`.
template <class T>
void drop(uint64_t key, uint64_t row, int64_t first, int64_t count, uint32_t threshold,
          Accum<T> scale, const T* x, T* y) {
  PhiloxBlock words;
  int64_t lead = first % 4;
  for (int64_t begin = 0; begin < count;) {
    philox_block(key, static_cast<uint64_t>(first + begin) / 4, row, words);
    const int64_t n = std::min(kPhiloxWords - lead, count - begin);
    vec::loop(n, [=, word = words.data() + lead, from = x + begin, to = y + begin](int64_t e) {
      const Accum<T> kept = static_cast<Accum<T>>(from[e]) * scale;
      to[e] = static_cast<T>(word[e] >= threshold ? kept : Accum<T>{0});
    });
    begin += n;
    lead = 0;
  }
}

}  // namespace

// B samples, each of R runs of C elements that are counted one after the other.

Kernel prepare(const Dropout& op, const KernelTypes& types, std::string_view) {
  const bool by_position = types.in.size() > 2;
  const int64_t B = types.in[0].dims[0];
  const int64_t E = B == 0 ? 0 : types.in[0].numel() / B;
  const int64_t R = by_position ? types.in[0].dims[1] : (E + kPhiloxWords - 1) / kPhiloxWords;
  const int64_t C = by_position ? types.in[0].dims[2] : kPhiloxWords;
  const int64_t columns = op.columns > 0 ? op.columns : C;
  const uint64_t key = dropout_key(op.seed, op.stream);
  const uint32_t threshold = dropout_threshold(op.p);
  const int64_t first_column = op.first_column;
  return by_float(types.out[0].dtype, [=, p = op.p]<class T>() -> Kernel {
    return [=](const KernelArgs& args) {
      const T* x = args.in[0].as<T>();
      const int64_t* rows = args.in[1].as<int64_t>();
      const int32_t* positions = by_position ? args.in[2].as<int32_t>() : nullptr;
      T* y = args.out[0].as<T>();
      const auto scale = static_cast<Accum<T>>(1.0 / (1.0 - p));
      const int64_t grain = std::max<int64_t>(1, 4096 / std::max<int64_t>(C, 1));
      parallel_ranges(B * R, grain, [=](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t b = i / R;
          const int64_t at = i % R * C;
          const int64_t first = by_position ? positions[i] * columns + first_column : at;
          drop(key, static_cast<uint64_t>(rows[b]), first, std::min(C, E - at), threshold, scale,
               x + b * E + at, y + b * E + at);
        }
      });
    };
  });
}

}  // namespace tokamak::cpu
