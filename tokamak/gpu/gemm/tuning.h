// Functions that the tuners of library kernels share.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tokamak/core/dtype.h"
#include "tokamak/gpu/device.h"

namespace tokamak::gpu {

struct TunerOptions {
  bool is_on = true;           ///< false: take the library's first choice
  bool lists = false;          ///< time even if kept, and list every candidate on stderr
  bool tries_all = false;      ///< try candidates beyond the library's suggestions
  std::filesystem::path file;  ///< of TuningCache; empty keeps nothing
};

/// Reads TOKAMAK_TUNE: "0" is off, "list" and "all" list attention's candidates, "all" with every
/// setting of its engines. The file is `name` in cache_folder().
TunerOptions read_tuner_options(std::string_view name);

/// Describes what an algorithm of a `library` (its name and version) holds for.
std::string describe_machine(const Device& device, std::string_view library);

/// Fills device memory with normal numbers, fp32 or bf16, or with 8-bit floats of such; the
/// bf16 numbers are valid fp32 too. Complete on return, except for copies on `stream`. With values
/// like those of training, multipliers take more power, and the clock is lower, than with zeros.
void fill_random(std::byte* memory, int64_t bytes, DType dtype, cudaStream_t stream);

/// REQUIRES: !times.empty().
double median(std::vector<double> times);

}  // namespace tokamak::gpu
