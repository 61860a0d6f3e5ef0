#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "tokamak/cpu/dispatch.h"
#include "tokamak/cpu/vec_math.h"
#include "tokamak/ops/rope.h"

namespace tokamak::cpu {
namespace {

// N tokens, H heads.

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

std::vector<float> frequencies_of(const Rope& op, int64_t head_dim) {
  std::vector<float> frequencies;
  for (const double f : rope_frequencies(head_dim, op.theta, op.scaling))
    frequencies.push_back(static_cast<float>(op.inverse ? -f : f));
  return frequencies;
}

// Heads of each of `parts`, the first `turned` rotated, one after the other in each token's row of
// y.
template <class T>
void rotate_parts(std::span<const Tensor> parts, size_t turned, const int32_t* positions, int64_t N,
                  const std::vector<float>& frequency, T* y) {
  using A = Accum<T>;
  const auto half = static_cast<int64_t>(frequency.size());
  int64_t heads = 0;
  for (const Tensor& x : parts) heads += x.dim(2);
  parallel_ranges(N, 8, [&](int64_t first, int64_t last, int) {
    std::array<A, kPairs> sine{};
    std::array<A, kPairs> cosine{};
    for (int64_t n = first; n < last; ++n) {
      const auto position = static_cast<float>(positions[n]);
      for (int64_t begin = 0; turned > 0 && begin < half; begin += kPairs) {
        const int64_t end = std::min(begin + kPairs, half);
        vec::loop(end - begin,
                  [=, f = frequency.data(), s = sine.data(), c = cosine.data()](int64_t i) {
                    const auto angle = vec::sincos(static_cast<A>(position * f[begin + i]));
                    s[i] = angle.sin;
                    c[i] = angle.cos;
                  });
        T* to = y + n * heads * 2 * half;
        for (const Tensor& x : parts.first(turned)) {
          const int64_t width = x.dim(2) * 2 * half;
          rotate<T>(x.as<T>() + n * width, to, x.dim(2), half, begin, end, sine, cosine);
          to += width;
        }
      }
      T* end = y + (n + 1) * heads * 2 * half;
      for (size_t i = parts.size(); i-- > turned;) {
        const int64_t width = parts[i].dim(2) * 2 * half;
        end -= width;
        std::copy_n(parts[i].as<T>() + n * width, width, end);
      }
    }
  });
}

Kernel prepare_parts(const Rope& op, size_t turned, const KernelTypes& types) {
  const int64_t N = types.in.back().numel();
  const std::vector<float> frequencies = frequencies_of(op, types.in[0].dims[3]);
  return by_float(types.out[0].dtype, [=]<class T>() -> Kernel {
    return [=](const KernelArgs& a) {
      rotate_parts<T>(a.in.first(a.in.size() - 1), turned, a.in.back().as<int32_t>(), N,
                      frequencies, a.out[0].as<T>());
    };
  });
}

}  // namespace

Kernel prepare(const Rope& op, const KernelTypes& types, std::string_view) {
  return prepare_parts(op, 1, types);
}

Kernel prepare(const RopeConcat& op, const KernelTypes& types, std::string_view) {
  return prepare_parts(op.rope, static_cast<size_t>(op.num_turned), types);
}

}  // namespace tokamak::cpu
