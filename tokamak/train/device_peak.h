// What GPUs can compute at most, by their makers' data sheets.
#pragma once

#include <optional>
#include <string_view>

namespace tokamak {

/// Dense bf16 FLOP/s of a GPU by the name that its driver gives ("NVIDIA H200"), of one die where
/// the driver shows dies; nothing for a name that is not known.
std::optional<double> device_peak_flops(std::string_view name);

}  // namespace tokamak
