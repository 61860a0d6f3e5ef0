// The world of ranks with a GPU each: control messages as before, groups by NCCL.
#pragma once

#include <memory>
#include <string>

#include "tokamak/comm/communicator.h"
#include "tokamak/exec/backend.h"

namespace tokamak::gpu {

struct NcclOptions {
  int max_ctas = 0;  ///< thread blocks of one collective at most; 0 = NCCL's choice
  /// Groups of World::make_gather_group gather by the copy engines, which leaves the
  /// multiprocessors alone (NCCL 2.28, one host), where all their ranks gather at the same offsets.
  /// The memory is of Options::symmetric.
  bool copy_engine = false;
};

/// Device memory that can be registered with NCCL, or null where there is too little.
void* allocate_symmetric(int64_t bytes);
void free_symmetric(void* memory);

/// Whether NcclOptions::copy_engine can be had: NCCL 2.28 and newer.
bool has_copy_engine_gathers();

/// "2.28.9", or "" where this program was built without NCCL.
std::string nccl_version();

/// Barriers and texts go through `control`; groups move device memory of `gpu` (a backend of this
/// folder) on the stream given. While a call of any group is under way a thread looks after it: an
/// error of NCCL's, the death of a rank of this host, or no progress for as long as the time-out
/// ends the job through control.abort. Both arguments outlive the world. Throws Error where this
/// program was built without NCCL.
std::unique_ptr<World> make_nccl_world(World& control, Backend& gpu,
                                       const NcclOptions& options = {});

}  // namespace tokamak::gpu
