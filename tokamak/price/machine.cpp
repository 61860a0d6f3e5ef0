#include "tokamak/price/machine.h"

#include "tokamak/core/error.h"

namespace tokamak::price {

std::string_view name_of(Precision precision) {
  constexpr std::array<std::string_view, kNumPrecisions> kNames = {"fp32", "bf16", "fp8", "fp4"};
  return kNames[static_cast<size_t>(precision)];
}

}  // namespace tokamak::price
