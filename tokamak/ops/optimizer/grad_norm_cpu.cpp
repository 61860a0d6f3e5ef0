#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "tokamak/cpu/dispatch.h"
#include "tokamak/ops/optimizer/grad_norm.h"

namespace tokamak::cpu {
namespace {

// Lanes make the order of the sum explicit and allow vector instructions.
template <class T>
double sum_squares(const T* x, int64_t n) {
  constexpr int64_t kLanes = 32;
  std::array<double, kLanes> lanes{};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t k = 0; k < kLanes; ++k) {
      const auto value = static_cast<double>(static_cast<Accum<T>>(x[i + k]));
      lanes[k] += value * value;
    }
  }
  double total = 0.0;
  for (; i < n; ++i) {
    const auto value = static_cast<double>(static_cast<Accum<T>>(x[i]));
    total += value * value;
  }
  for (const double lane : lanes) total += lane;
  return total;
}

}  // namespace

Kernel prepare(const SumSquares& op, const KernelTypes& types, std::string_view) {
  return by_float(types.in[0].dtype, [&]<class T>() -> Kernel {
    return [blocks = op.blocks(types.in[0].numel())](const KernelArgs& a) {
      const T* x = a.in[0].as<T>();
      auto* sums = static_cast<double*>(a.workspace);
      const auto count = static_cast<int64_t>(blocks.size());
      parallel_rows(count, [&](int64_t b) {
        const SumSquares::WeightRange& block = blocks[b];
        sums[b] = block.weight * sum_squares(x + block.begin, block.end - block.begin);
      });
      double total = 0.0;
      for (int64_t b = 0; b < count; ++b) total += sums[b];
      double* y = a.out[0].as<double>();
      *y = a.accumulate[0] ? *y + total : total;
    };
  });
}

Kernel prepare(const ClipFactor& op, const KernelTypes&, std::string_view) {
  const double max_norm = op.max_norm;
  return [=](const KernelArgs& a) {
    const double norm = std::sqrt(*a.in[0].as<double>());
    const double factor = max_norm > 0.0 ? max_norm / (norm + 1e-6) : 1.0;
    const bool is_finite =
        std::isfinite(norm) && (!a.has(1) || std::isfinite(*a.in[1].as<double>()));
    const bool is_good = is_finite && (!a.has(2) || norm <= *a.in[2].as<double>());
    *a.out[0].as<double>() = norm;
    *a.out[1].as<float>() = is_good ? static_cast<float>(std::min(factor, 1.0))
                                    : std::numeric_limits<float>::quiet_NaN();
  };
}

}  // namespace tokamak::cpu
