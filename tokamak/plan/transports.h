// Which groups of a plan gather by copy engines, which take no multiprocessors from kernels.
#pragma once

#include <span>

#include "tokamak/graph/op.h"
#include "tokamak/plan/plan.h"

namespace tokamak {

/// Whether gathers that overlap compute use copy engines; kAuto: they do where ranks share one
/// host.
enum class CopyEngines : uint8_t { kNever, kAuto, kAlways };

struct TransportOptions {
  CopyEngines choice = CopyEngines::kNever;
  int num_ranks = 1;  ///< of the mesh
  /// kAuto: in a mesh of several hosts, groups of tp that lie in one host use copy engines too.
  bool by_group = false;
  /// Axes whose ranks may lay out their memory differently. A copy engine reads a peer's part at
  /// the offset that the part has on its own rank.
  AxisSet unlike;
};

/// Whether `task` gathers on another stream than the first, neither from State nor to it.
bool gathers_beside_compute(const Task& task);

/// Sets the transports of `plans`, which are all that one rank binds together and share their
/// groups. On a GPU, where `options` ask for it, copy engines carry each group that has calls if
/// all of them gather concurrently with compute; kernels carry the others. On a CPU, or where
/// `options` do not ask, `plans` stay as they are.
void choose_transports(std::span<Plan* const> plans, const Target& target,
                       const TransportOptions& options);

}  // namespace tokamak
