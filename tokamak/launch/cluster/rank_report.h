// A rank's report on its host and device, known and measured, for `doctor --cluster`.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tokamak::launch {

struct RankReport {
  int64_t rank = 0;
  int64_t local_rank = 0;
  std::string host;
  bool is_gpu = false;
  std::string device;           ///< "NVIDIA H200", "4 threads"
  int64_t memory_bytes = 0;     ///< of the device, or the host's
  int64_t free_bytes = 0;       ///< that the rank could still take
  double gemm_flops = 0;        ///< of a bf16 matmul on a GPU, fp32 on a CPU; 0 = not measured
  double copy_bytes_per_s = 0;  ///< read and written both counted
  double ring_bytes_per_s = 0;  ///< sent, while all ranks send to the next one
  double pair_bytes_per_s = 0;  ///< sent to the slowest partner while both send
  int64_t pair_rank = -1;       ///< that partner; -1 = there is none
  int64_t disk_bytes = -1;      ///< free at dump_folder; -1 = it cannot be written
  bool shares_folder = true;    ///< it sees there what rank 0 has written
  std::string folder_error;     ///< why dump_folder cannot be written
  int64_t clock_mhz = 0;        ///< of a GPU's multiprocessors during a matmul; 0 = unknown
  int64_t most_clock_mhz = 0;
  std::optional<int64_t> ecc_errors;  ///< that could not be corrected, since the driver started
  std::vector<std::string> faults;    ///< of the device, as the driver reports them
  std::string nvlink_domain;          ///< cluster and clique of multi-node NVLink, else empty
  std::map<std::string, std::string> versions;  ///< program, config, data, driver, libraries
};

std::string to_json(const RankReport& report);

/// Throws Error where the text is not to_json()'s.
RankReport report_of_json(const std::string& text);

}  // namespace tokamak::launch
