#include <algorithm>

#include "tokamak/cpu/dispatch.h"
#include "tokamak/cpu/philox.h"
#include "tokamak/cpu/vec_math.h"
#include "tokamak/ops/dropout.h"

namespace tokamak::cpu {

// B samples, E elements in each.

Kernel prepare(const Dropout& op, const KernelTypes& types, std::string_view) {
  const int64_t B = types.in[0].dims[0];
  const int64_t E = B == 0 ? 0 : types.in[0].numel() / B;
  const uint64_t key = dropout_key(op.seed, op.stream);
  const uint32_t threshold = dropout_threshold(op.p);
  return by_float(types.out[0].dtype, [=, p = op.p]<class T>() -> Kernel {
    return [=](const KernelArgs& args) {
      using A = Accum<T>;
      const T* x = args.in[0].as<T>();
      const int64_t* rows = args.in[1].as<int64_t>();
      T* y = args.out[0].as<T>();
      const A scale = static_cast<A>(1.0 / (1.0 - p));
      const int64_t blocks = (E + kPhiloxWords - 1) / kPhiloxWords;
      parallel_ranges(B * blocks, 32, [=](int64_t first, int64_t last, int) {
        PhiloxBlock words;
        for (int64_t block = first; block < last; ++block) {
          const int64_t b = block / blocks;
          const int64_t begin = block % blocks * kPhiloxWords;
          const int64_t count = std::min(kPhiloxWords, E - begin);
          philox_block(key, static_cast<uint64_t>(begin) / 4, static_cast<uint64_t>(rows[b]),
                       words);
          const T* from = x + b * E + begin;
          T* to = y + b * E + begin;
          vec::loop(count, [=, word = words.data()](int64_t e) {
            const A kept = static_cast<A>(from[e]) * scale;
            to[e] = static_cast<T>(word[e] >= threshold ? kept : A{0});
          });
        }
      });
    };
  });
}

}  // namespace tokamak::cpu
