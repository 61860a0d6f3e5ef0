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

/// Returns machine.json in cache_folder() or, for a `host` among several, machine.HOST.json: they
/// may share a home.
std::filesystem::path machine_file_path(const std::string& host = "");

/// Returns the path written.
std::filesystem::path save_machine_file(const MachineFile& machine, const std::string& host = "");

/// Returns the model of this machine's CPU from /proc/cpuinfo, or "unknown".
std::string cpu_name();

/// Returns what is in the file of `host`, else in machine.json. Returns nothing if doctor has not
/// run, or ran on another CPU or with another number of threads, or if the file is damaged.
std::optional<MachineFile> load_machine_file(int threads, const std::string& host);

/// Does the same for this host.
std::optional<MachineFile> load_machine_file(int threads);

}  // namespace tokamak
