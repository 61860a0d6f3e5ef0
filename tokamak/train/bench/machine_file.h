// What `doctor` measured of this machine, kept between runs.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "tokamak/core/dtype.h"

namespace tokamak {

struct MachineFile {
  std::string cpu;
  int threads = 0;
  double gemm_flops_f32 = 0.0;
  double gemm_flops_bf16 = 0.0;
  double copy_bytes_per_s = 0.0;

  double gemm_flops(DType dtype) const {
    return dtype == DType::kBF16 ? gemm_flops_bf16 : gemm_flops_f32;
  }
};

/// Returns machine.json in cache_folder().
std::filesystem::path machine_file_path();

/// Returns the path written.
std::filesystem::path save_machine_file(const MachineFile& machine);

/// Returns the model of this machine's CPU from /proc/cpuinfo, or "unknown".
std::string cpu_name();

/// Returns nothing if doctor has not run, or ran on another CPU (several machines may share a home)
/// or with another number of threads, or if the file is damaged.
std::optional<MachineFile> load_machine_file(int threads);

}  // namespace tokamak
