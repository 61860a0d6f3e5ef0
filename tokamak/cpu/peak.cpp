#include "tokamak/cpu/peak.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "tokamak/core/random.h"
#include "tokamak/cpu/gemm.h"

namespace tokamak::cpu {

double measure_gemm_peak(DType dtype, int64_t size, double seconds) {
  if (!Gemm::is_available()) return 0.0;
  const auto bytes = static_cast<size_t>(size * size * size_of(dtype));
  std::vector<std::byte> a(bytes);
  std::vector<std::byte> b(bytes);
  std::vector<float> c(static_cast<size_t>(size * size));
  for (size_t i = 0; i < bytes / 2; ++i) {
    // Random bf16 in [1, 2); as the upper halves of floats they serve fp32 too.
    const auto bits = static_cast<uint16_t>(0x3F80U | (random_u32(0, 0, i) & 0x7FU));
    std::copy_n(reinterpret_cast<const std::byte*>(&bits), 2,
                a.begin() + static_cast<std::ptrdiff_t>(2 * i));
    std::copy_n(reinterpret_cast<const std::byte*>(&bits), 2,
                b.begin() + static_cast<std::ptrdiff_t>(2 * i));
  }
  const Gemm gemm({.m = size, .n = size, .k = size, .in = dtype, .out = DType::kF32});
  double best = 0.0;
  double spent = 0.0;
  for (int run = 0; run < 3 || spent < seconds; ++run) {
    const auto start = std::chrono::steady_clock::now();
    gemm.run(a.data(), b.data(), nullptr, c.data(), false);
    const double took =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    spent += took;
    best = std::max(best, 2.0 * static_cast<double>(size * size * size) / took);
  }
  return best;
}

}  // namespace tokamak::cpu
