#include "tokamak/graph/op.h"

#include <array>

namespace tokamak {

Cost memory_cost(std::span<const TensorType> in, std::span<const TensorType> out,
                 double flops_per_element) {
  Cost cost{.kind = Cost::Kind::kMemory};
  for (const TensorType& type : in) cost.bytes_read += static_cast<double>(type.bytes());
  for (const TensorType& type : out) cost.bytes_written += static_cast<double>(type.bytes());
  if (!out.empty()) cost.flops = flops_per_element * static_cast<double>(out[0].numel());
  return cost;
}

std::span<const Variant> one_kernel() {
  static constexpr std::array kVariants{kCpuReference, kGpuKernel};
  return kVariants;
}

std::span<const Variant> communication_only() {
  static constexpr std::array kVariants{kCommunication};
  return kVariants;
}

}  // namespace tokamak
