// Which groups of a plan gather by copy engines, which take no multiprocessors from kernels.
#pragma once

#include <span>

#include "tokamak/graph/op.h"
#include "tokamak/plan/plan.h"

namespace tokamak {

/// Whether gathers beside compute go by copy engines; kAuto: where all ranks are of one host.
enum class CopyEngines : uint8_t { kNever, kAuto, kAlways };

struct CarrierOptions {
  CopyEngines choice = CopyEngines::kNever;
  int num_ranks = 1;  ///< of the mesh
  /// Axes whose ranks may lay out their memory differently; a copy engine takes a peer's part from
  /// where its own rank has its own.
  AxisSet unlike;
};

/// Whether it gathers from scratch to scratch on another stream than the first.
bool gathers_beside_compute(const Task& task);

/// Sets the carriers of `plans`, all that one rank binds together, which share their groups. On a
/// GPU where `options` want it, copy engines carry those groups that have calls, all of which
/// gather beside compute; kernels carry the others. On a CPU, and where nothing is wanted, `plans`
/// stay as they are.
void choose_carriers(std::span<Plan* const> plans, const Target& target,
                     const CarrierOptions& options);

}  // namespace tokamak
