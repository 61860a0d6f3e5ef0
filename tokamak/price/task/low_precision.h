// What of a segment moves and is converted otherwise where products compute in fewer bits than the
// plan was made in.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tokamak/plan/plan.h"

namespace tokamak::price {

struct LowPrecisionFlow {
  /// By task: a product that brings its first input to few bits. One that reads what an earlier
  /// product has brought there, or what was sent so, does not.
  std::vector<uint8_t> casts;
  /// By task: the first product of the segment that reads these weights forward.
  std::vector<uint8_t> casts_weights;
  /// By task: communication of what products read, which is sent in few bits.
  std::vector<uint8_t> is_low;
};

/// `costs`: of the tasks.
LowPrecisionFlow low_precision_flow(std::span<const Task> tasks, std::span<const Cost> costs);

/// Whether a product is one that a low precision is asked for: of a block, forward or backward.
bool is_block_product(const Task& task, const Cost& cost);

}  // namespace tokamak::price
