// What NVIDIA's management library says of a GPU's health. It is loaded when it is asked; where it
// is missing, nothing is known.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tokamak::launch {

struct GpuHealth {
  std::string driver;  ///< its version
  int64_t clock_mhz = 0;
  int64_t most_clock_mhz = 0;
  std::optional<int64_t> ecc_errors;  ///< uncorrected ones since the driver started
  std::vector<std::string> faults;    ///< "a memory row could not be remapped", "Xid 79: ..."
  std::string nvlink_domain;          ///< "CLUSTER.CLIQUE" of multi-node NVLink, else empty
};

/// Returns nothing where there is no library or no GPU at `bus` ("0000:1b:00.0").
std::optional<GpuHealth> gpu_health(const std::string& bus);

/// Returns the faults of hardware that the driver has logged for the GPU at `bus` in `log`, the
/// kernel's messages: each Xid once, with what it means.
std::vector<std::string> xid_faults(const std::string& log, const std::string& bus);

}  // namespace tokamak::launch
