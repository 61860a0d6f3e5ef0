// Devices of one kind are not equally fast where power is short, and a run goes at the pace of its
// slowest one. docs/pricing.md, "The slowest device".
#pragma once

#include <cstdint>

#include "tokamak/price/machine/machine.h"

namespace tokamak::price {

/// Returns the expected greatest of n independent standard normal numbers: 0 for one, 2.3 for 64,
/// 3.4 for 2,048 (Blom 1958, within 0.03).
double expected_greatest(int64_t n);

/// Returns by how much the slowest of `num_devices` is expected to be slower than their mean where
/// power is short: 0.024 for 2.4 %. REQUIRES: num_devices > 0.
double slowest_lag(const Device& device, int64_t num_devices);

/// Returns the machine as the slowest of `num_devices` is expected to run.
/// REQUIRES: num_devices > 0.
Machine slowest_of(Machine machine, int64_t num_devices);

}  // namespace tokamak::price
