// What a segment converts, and sends differently, if software other than ours computes matmuls in
// fewer bits than the plan was made in (Software::own_casts).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tokamak/plan/plan.h"

namespace tokamak::price {

struct LowPrecisionFlow {
  /// By task: whether a matmul casts its first input to few bits. It does not if an earlier matmul
  /// has cast that input, or if it was sent in few bits.
  std::vector<uint8_t> casts;
  /// By task: whether it is the first matmul of the segment that reads these weights forward.
  std::vector<uint8_t> casts_weights;
  /// By task: whether it communicates inputs of matmuls, which are sent in few bits.
  std::vector<uint8_t> is_low;
};

/// `costs` are those of the tasks. Gathers send few bits if `gathers_low`.
LowPrecisionFlow low_precision_flow(std::span<const Task> tasks, std::span<const Cost> costs,
                                    bool gathers_low = true);

/// Whether a low precision applies to a matmul: it must be in a block, forward or backward.
bool is_block_product(const Task& task, const Cost& cost);

}  // namespace tokamak::price
