// Machine files from what was measured: `tokamak bench op|comm --calibration FILE`.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tokamak/graph/op.h"
#include "tokamak/price/task/collective_time.h"

namespace tokamak::price {

/// One op, timed by itself; seconds of one call.
struct TimedOp {
  std::string op;
  Cost::Kind kind = Cost::Kind::kMemory;
  double flops = 0.0;
  double bytes = 0.0;
  double seconds = 0.0;
};

/// One collective of all ranks; `bytes` as collective_seconds() takes them.
struct TimedCollective {
  Collective kind = Collective::kAllReduce;
  double bytes = 0.0;
  double seconds = 0.0;
};

/// Returns TOML for `base`+FILE: the shares of base's peaks that the fastest matmul, attention and
/// its gradient reached, over base's power derate, and those of all matmuls and of all memory-bound
/// ops together. If base's power limit holds for the whole step, only the latter two are written,
/// since its other shares are those of cold clocks. With an empty base FILE is a device whose peaks
/// are these rates. Throws Error if no timing shows a rate.
std::string device_toml(const std::string& base, const std::string& device, double memory_bytes,
                        Precision precision, std::span<const TimedOp> ops);

/// Returns TOML for `base`+FILE: fitted start, root and rate of the level that connects the ranks.
/// With an empty base FILE is a fabric of one level, "host".
std::string fabric_toml(const std::string& base, int num_ranks,
                        std::span<const TimedCollective> timed);

/// Fits base_s, sqrt_s and efficiency of one level and, if the switch reduces, its rate and start.
/// Returns the mean error, as a factor less 1.
double fit_level(Machine& machine, size_t level, int num_ranks,
                 std::span<const TimedCollective> timed);

}  // namespace tokamak::price
