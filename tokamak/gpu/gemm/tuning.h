// What the tuners of library kernels share.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tokamak/core/dtype.h"
#include "tokamak/gpu/device.h"

namespace tokamak::gpu {

struct TunerOptions {
  bool is_on = true;           ///< false: the library's own first choice
  bool lists = false;          ///< time again what is kept, and tell of every candidate on stderr
  bool tries_all = false;      ///< candidates beyond those that the library suggests
  std::filesystem::path file;  ///< of TuningCache; empty keeps nothing
};

/// As TOKAMAK_TUNE says: "0" is off, "list" and "all" list attention's candidates, "all" with every
/// setting of its engines. The file is `name` in cache_folder().
TunerOptions read_tuner_options(std::string_view name);

/// What an algorithm of a `library` (its name and version) holds for.
std::string describe_machine(const Device& device, std::string_view library);

/// Fills device memory with normal numbers, fp32 or bf16, or with codes of such; the numbers of
/// bf16 are numbers of fp32 too. Complete on return but for copies on `stream`. With the values of
/// training a multiplier takes more power, and the clock is lower, than with zeros.
void fill_random(std::byte* memory, int64_t bytes, DType dtype, cudaStream_t stream);

/// REQUIRES: !times.empty().
double median(std::vector<double> times);

}  // namespace tokamak::gpu
