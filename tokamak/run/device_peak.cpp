#include "tokamak/run/device_peak.h"

namespace tokamak {
namespace {

struct Peak {
  std::string_view part;  ///< of the name
  double flops = 0.0;
};

// Longer names before those that they contain.
constexpr Peak kPeaks[] = {
    {"H100 NVL", 835e12}, {"H100 PCIe", 756e12}, {"H100", 989e12},    {"H200", 989e12},
    {"H20", 148e12},      {"GB200", 2.5e15},     {"GB300", 2.5e15},   {"B200", 2.25e15},
    {"B300", 2.25e15},    {"A100", 312e12},      {"L40S", 362e12},    {"RTX A6000", 154.85e12},
    {"MI250X", 191.5e12}, {"MI300X", 1300e12},   {"MI325X", 1300e12}, {"MI355X", 2500e12},
};

struct Rates {
  std::string_view part;
  DeviceRates rates;
};

// The H200's are measured; the others' are its shares of the data sheet's figures.
constexpr Rates kRates[] = {
    {"H200", {.gemm_flops_bf16 = 790e12, .bytes_per_s = 4.2e12}},
    {"H100 80GB HBM3", {.gemm_flops_bf16 = 750e12, .bytes_per_s = 3.0e12}},
    {"A100-SXM4-80GB", {.gemm_flops_bf16 = 280e12, .bytes_per_s = 1.8e12}},
};

}  // namespace

std::optional<double> device_peak_flops(std::string_view name) {
  for (const Peak& peak : kPeaks) {
    if (name.find(peak.part) != std::string_view::npos) return peak.flops;
  }
  return std::nullopt;
}

double DeviceRates::gemm_flops(DType dtype) const {
  if (dtype == DType::kBF16) return gemm_flops_bf16;
  return dtype == DType::kF32 ? gemm_flops_f32 : 0.0;
}

DeviceRates device_rates(std::string_view name) {
  for (const Rates& rates : kRates) {
    if (name.find(rates.part) != std::string_view::npos) return rates.rates;
  }
  return {};
}

}  // namespace tokamak
