// Division of element indices by an extent known when a kernel is launched.
#pragma once

#include <cstdint>

#include "tokamak/gpu/vendor.h"

namespace tokamak::gpu {

/// Computes n / d by a multiplication where n < 2^31 (Granlund and Montgomery, PLDI 1994).
class Divisor {
 public:
  Divisor() = default;

  /// REQUIRES: d > 0.
  explicit Divisor(int64_t d) : d_(d) {
    while (shift_ < 31 && (int64_t{1} << shift_) < d) ++shift_;
    const int64_t power = int64_t{1} << shift_;
    // A longer extent divides all of [0, 2^31) to 0, as n >> 31 does.
    if (power >= d)
      factor_ = static_cast<uint32_t>(
          (static_cast<uint64_t>(power - d) << 32U) / static_cast<uint64_t>(d) + 1);
  }

  /// REQUIRES: n >= 0.
  __device__ int64_t quotient(int64_t n) const {
    if (n >> 31 != 0) return n / d_;
    const auto low = static_cast<uint32_t>(n);
    return (__umulhi(low, factor_) + low) >> shift_;
  }

  __host__ __device__ int64_t value() const { return d_; }

 private:
  int64_t d_ = 1;
  uint32_t factor_ = 1;
  uint32_t shift_ = 0;
};

}  // namespace tokamak::gpu
