// The GPU backend: one device of this host.
#pragma once

#include <memory>
#include <string>

#include "tokamak/exec/backend.h"

namespace tokamak::gpu {

struct Options {
  int device = 0;
  bool reference_only = false;  ///< only this project's own portable kernels
  bool symmetric = false;       ///< memory that NCCL can register for the copy engines of its peers
  int devices_per_host = 0;     ///< ranks of this run on this host, for Target
  bool deterministic = false;   ///< every run gives the same bits, also in libraries
  Rates rates;                  ///< for Target
};

/// Devices that the driver shows to this process; 0 where this program was built without a GPU
/// backend.
int num_devices();

/// Why num_devices() is 0: "built without CUDA", "no device", "driver too old"; "" if it is not 0.
std::string why_none();

/// Throws Error with the reason if there is no such device.
std::unique_ptr<Backend> make_backend(const Options& options = {});

}  // namespace tokamak::gpu
