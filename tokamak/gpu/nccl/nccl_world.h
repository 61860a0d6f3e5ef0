// The world of ranks with one GPU each: another world carries control messages, NCCL groups' data.
#pragma once

#include <memory>
#include <string>

#include "tokamak/comm/communicator.h"
#include "tokamak/exec/backend.h"

namespace tokamak::gpu {

struct NcclOptions {
  int max_ctas = 0;  ///< most thread blocks of one collective; 0 = NCCL's choice
  /// Most thread blocks of one message of World::make_message_group, between ranks of one host and
  /// of several. A receive holds their multiprocessors until its peer sends, and what computes
  /// beside it may need another wave. Links of a host want more blocks than a network adapter,
  /// which reads and writes the device's memory itself.
  int message_ctas = 4;
  int network_message_ctas = 2;
  /// Groups of World::make_gather_group gather by the copy engines, which leaves the
  /// multiprocessors alone (NCCL 2.28, one host), where all their ranks gather at the same offsets.
  /// The memory must be allocated with Options::symmetric.
  bool copy_engine = false;
};

/// Returns device memory that can be registered with NCCL, or null where there is too little.
void* allocate_symmetric(int64_t bytes);
void free_symmetric(void* memory);

/// Whether NcclOptions::copy_engine is available: it needs NCCL 2.28 or newer.
bool has_copy_engine_gathers();

/// Returns "2.28.9" or the like, or "" where this program was built without NCCL.
std::string nccl_version();

/// Barriers and texts go through `control`; groups move device memory of `gpu` (a backend of this
/// folder) on the given stream. While a call of any group is in flight a thread watches it: an NCCL
/// error, the death of a rank of this host, or no progress within the time-out ends the job through
/// control.abort. Both arguments must outlive the world. Throws Error where this program was built
/// without NCCL.
std::unique_ptr<World> make_nccl_world(World& control, Backend& gpu,
                                       const NcclOptions& options = {});

}  // namespace tokamak::gpu
