#include <algorithm>
#include <array>

#include "tokamak/cpu/dispatch.h"
#include "tokamak/cpu/vec_math.h"
#include "tokamak/ops/rope.h"

namespace tokamak::cpu {
namespace {

constexpr int64_t kPairs = 64;

// One token's heads, pairs [begin, end): (a, b) -> (a cos - b sin, b cos + a sin).
template <class T, class A = Accum<T>>
void rotate(const T* x, T* y, int64_t H, int64_t half, int64_t begin, int64_t end,
            const std::array<A, kPairs>& sine, const std::array<A, kPairs>& cosine) {
  for (int64_t h = 0; h < H; ++h) {
    const T* from = x + h * 2 * half + begin;
    T* to = y + h * 2 * half + begin;
    vec::loop(end - begin, [=, s = sine.data(), c = cosine.data()](int64_t i) {
      const A a = static_cast<A>(from[i]);
      const A b = static_cast<A>(from[i + half]);
      to[i] = static_cast<T>(a * c[i] - b * s[i]);
      to[i + half] = static_cast<T>(b * c[i] + a * s[i]);
    });
  }
}

}  // namespace

// N tokens, H heads.

Kernel prepare(const Rope& op, const KernelTypes& types, std::string_view) {
  const int64_t N = types.in[1].numel();
  const int64_t H = types.in[0].dims[2];
  const int64_t half = types.in[0].dims[3] / 2;
  std::vector<float> frequencies;
  for (const double f : rope_frequencies(2 * half, op.theta, op.scaling))
    frequencies.push_back(static_cast<float>(op.inverse ? -f : f));
  return by_float(types.out[0].dtype, [=]<class T>() -> Kernel {
    return [=](const KernelArgs& args) {
      using A = Accum<T>;
      const T* x = args.in[0].as<T>();
      const int32_t* positions = args.in[1].as<int32_t>();
      const float* frequency = frequencies.data();
      T* y = args.out[0].as<T>();
      parallel_ranges(N, 8, [=](int64_t first, int64_t last, int) {
        std::array<A, kPairs> sine{};
        std::array<A, kPairs> cosine{};
        for (int64_t n = first; n < last; ++n) {
          const auto position = static_cast<float>(positions[n]);
          for (int64_t begin = 0; begin < half; begin += kPairs) {
            const int64_t end = std::min(begin + kPairs, half);
            vec::loop(end - begin, [=, s = sine.data(), c = cosine.data()](int64_t i) {
              const auto turned = vec::sincos(static_cast<A>(position * frequency[begin + i]));
              s[i] = turned.sin;
              c[i] = turned.cos;
            });
            const int64_t row = n * H * 2 * half;
            rotate<T>(x + row, y + row, H, half, begin, end, sine, cosine);
          }
        }
      });
    };
  });
}

}  // namespace tokamak::cpu
