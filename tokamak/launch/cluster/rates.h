// Short measurements of a rank's device and of what ranks say to each other.
#pragma once

#include "tokamak/comm/communicator.h"
#include "tokamak/exec/backend.h"
#include "tokamak/launch/cluster/rank_report.h"

namespace tokamak::launch {

/// Returns bytes per second of a copy between two arrays of `bytes` by `threads`, read and written
/// both counted; the best of several runs counts.
double measure_copy_rate(int threads, size_t bytes);

/// How large the measurements are. They bound the time on a CPU that others use too.
struct CheckEffort {
  int64_t matmul_size = 1536;             ///< of a CPU
  size_t copy_bytes = size_t{64} << 20U;  ///< of a CPU
  double network_s = 30.0;                ///< after which no further partner is tried
};

/// Fills in the rates of a matmul and of a copy.
void measure_device(Backend& backend, const CheckEffort& effort, RankReport& report);

/// Fills in the rates at which this rank sends while all send to the next rank, and to its slowest
/// partner: every other rank where there are at most 8, else those at distances 1, 2, 4 ... by
/// number (XOR). After `budget_s` no further partner is tried. Collective over `ranks`, the world
/// of the device's groups; `control` keeps their clocks together.
void measure_network(World& control, World& ranks, Backend& backend, double budget_s,
                     RankReport& report);

}  // namespace tokamak::launch
