#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "tokamak/cpu/dispatch.h"
#include "tokamak/cpu/vec_math.h"
#include "tokamak/ops/attention/rope.h"

namespace tokamak::cpu {
namespace {

// N tokens, H heads.

constexpr int64_t kPairs = 64;

// Rotates pairs [begin, end) of one token's heads: (a, b) -> (a cos - b sin, b cos + a sin).
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

// Radians per position of each pair, and what multiplies sines and cosines.
struct Frequencies {
  std::vector<float> of_pair;
  double factor = 1.0;

  Frequencies(const Rope& op, int64_t head_dim) : factor(op.scaling.attention_factor) {
    for (const double f : rope_frequencies(head_dim, op.theta, op.scaling))
      of_pair.push_back(static_cast<float>(op.inverse ? -f : f));
  }

  auto half() const { return static_cast<int64_t>(of_pair.size()); }
};

// Sines and cosines of a token's angles, for a limited number of pairs at a time.
template <class A>
struct Angles {
  std::array<A, kPairs> sine{};
  std::array<A, kPairs> cosine{};

  void set(float position, const Frequencies& frequencies, int64_t begin, int64_t count) {
    const float* frequency = frequencies.of_pair.data() + begin;
    const auto factor = static_cast<A>(frequencies.factor);
    vec::loop(count, [=, s = sine.data(), c = cosine.data()](int64_t i) {
      const auto angle = vec::sincos(static_cast<A>(position * frequency[i]));
      s[i] = angle.sin * factor;
      c[i] = angle.cos * factor;
    });
  }
};

// Rotates the first `turned` of H heads of x and leaves the others as they are.
template <class T>
void rotate_some(const T* x, int64_t turned, int64_t H, const int32_t* positions, int64_t N,
                 const Frequencies& frequency, T* y) {
  const int64_t half = frequency.half();
  parallel_ranges(N, 8, [&](int64_t first, int64_t last, int) {
    Angles<Accum<T>> angles;
    for (int64_t n = first; n < last; ++n) {
      const int64_t at = n * H * 2 * half;
      for (int64_t begin = 0; begin < half; begin += kPairs) {
        const int64_t end = std::min(begin + kPairs, half);
        angles.set(static_cast<float>(positions[n]), frequency, begin, end - begin);
        rotate<T>(x + at, y + at, turned, half, begin, end, angles.sine, angles.cosine);
      }
      const int64_t rest = at + turned * 2 * half;
      if (x != y) std::copy_n(x + rest, (H - turned) * 2 * half, y + rest);
    }
  });
}

// Puts the heads of `parts`, the first `turned` parts rotated, side by side in each token's row of
// y.
template <class T>
void rotate_parts(std::span<const Tensor> parts, size_t turned, const int32_t* positions, int64_t N,
                  const Frequencies& frequency, T* y) {
  const int64_t half = frequency.half();
  int64_t heads = 0;
  for (const Tensor& x : parts) heads += x.dim(2);
  parallel_ranges(N, 8, [&](int64_t first, int64_t last, int) {
    Angles<Accum<T>> angles;
    for (int64_t n = first; n < last; ++n) {
      for (int64_t begin = 0; turned > 0 && begin < half; begin += kPairs) {
        const int64_t end = std::min(begin + kPairs, half);
        angles.set(static_cast<float>(positions[n]), frequency, begin, end - begin);
        T* to = y + n * heads * 2 * half;
        for (const Tensor& x : parts.first(turned)) {
          const int64_t width = x.dim(2) * 2 * half;
          rotate<T>(x.as<T>() + n * width, to, x.dim(2), half, begin, end, angles.sine,
                    angles.cosine);
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

}  // namespace

Kernel prepare(const Rope& op, const KernelTypes& types, std::string_view) {
  const int64_t N = types.in[1].numel();
  const int64_t H = types.in[0].dims[2];
  const int64_t turned = op.num_turned > 0 ? op.num_turned : H;
  return by_float(
      types.out[0].dtype, [=, f = Frequencies(op, types.in[0].dims[3])]<class T>() -> Kernel {
        return [=](const KernelArgs& a) {
          rotate_some<T>(a.in[0].as<T>(), turned, H, a.in[1].as<int32_t>(), N, f, a.out[0].as<T>());
        };
      });
}

Kernel prepare(const RopeConcat& op, const KernelTypes& types, std::string_view) {
  const int64_t N = types.in.back().numel();
  const auto turned = static_cast<size_t>(op.num_turned);
  return by_float(types.out[0].dtype,
                  [=, f = Frequencies(op.rope, types.in[0].dims[3])]<class T>() -> Kernel {
                    return [=](const KernelArgs& a) {
                      rotate_parts<T>(a.in.first(a.in.size() - 1), turned,
                                      a.in.back().as<int32_t>(), N, f, a.out[0].as<T>());
                    };
                  });
}

}  // namespace tokamak::cpu
