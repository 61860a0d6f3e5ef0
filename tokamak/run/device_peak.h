// What devices can do at most: by their makers' data sheets for mfu, by measurement for floors.
#pragma once

#include <optional>
#include <string_view>

#include "tokamak/core/dtype.h"

namespace tokamak {

/// Dense bf16 FLOP/s of a GPU by the name that its driver gives ("NVIDIA H200"), of one die where
/// the driver shows dies; nothing for a name that is not known.
std::optional<double> device_peak_flops(std::string_view name);

/// The best that products and copies reach on a device; 0 = not known.
struct DeviceRates {
  double gemm_flops_bf16 = 0.0;
  double gemm_flops_f32 = 0.0;
  double bytes_per_s = 0.0;  ///< read and written both counted

  /// Of products of operands of this type.
  double gemm_flops(DType dtype) const;
};

/// Of a GPU by its driver's name; all 0 for a name that is not known.
DeviceRates device_rates(std::string_view name);

}  // namespace tokamak
