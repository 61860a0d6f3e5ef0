#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "tokamak/cpu/dispatch.h"
#include "tokamak/ops/float8/amax_history.h"

namespace tokamak::cpu {
namespace {

// Integers order magnitudes, and NaN is above all.
float greater(float a, float b) {
  return std::bit_cast<uint32_t>(a) < std::bit_cast<uint32_t>(b) ? b : a;
}

float scale_of(const AmaxHistory& op, float largest, float amax) {
  const float range = std::ldexp(largest, -op.margin);
  const float scale = std::min(range / amax, std::numeric_limits<float>::max());
  if (!op.power_of_two) return scale;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scale) & 0xFF800000U);
}

}  // namespace

Kernel prepare(const StageMaxima& op, const KernelTypes&, std::string_view) {
  return [row_of = op.row_of](const KernelArgs& a) {
    auto* maxima = a.out[0].as<float>();
    if (!a.accumulate[0]) std::fill_n(maxima, a.out[0].numel(), 0.0F);
    for (size_t i = 0; i < row_of.size(); ++i)
      maxima[row_of[i]] = greater(maxima[row_of[i]], *a.in[i].as<float>());
  };
}

Kernel prepare(const AmaxHistory& op, const KernelTypes& types, std::string_view) {
  return [op, columns = types.in[0].dims[1]](const KernelArgs& a) {
    const auto* maxima = a.in[1].as<float>();
    const bool has_diverged = !std::isfinite(*a.in[2].as<float>());
    double saturated = a.accumulate[1] ? *a.out[1].as<double>() : 0.0;
    for (size_t site = 0; site < op.largest.size(); ++site) {
      float* scale = a.out[0].as<float>() + static_cast<int64_t>(site) * columns;
      float* history = scale + 1;
      const float amax = maxima[site];
      if (*scale > 0.0F && amax * *scale > op.largest[site]) saturated += 1.0;
      if (has_diverged || !(amax > 0.0F) || std::isinf(amax)) continue;
      std::copy_backward(history, history + columns - 2, history + columns - 1);
      history[0] = amax;
      const float most = op.most_recent ? amax : *std::max_element(history, history + columns - 1);
      *scale = scale_of(op, op.largest[site], most);
    }
    *a.out[1].as<double>() = saturated;
  };
}

}  // namespace tokamak::cpu
