// Communication ops as kernels: each maps to one call of a Communicator.
#pragma once

#include "tokamak/comm/communicator.h"
#include "tokamak/exec/kernel.h"
#include "tokamak/plan/plan.h"

namespace tokamak {

/// Returns the kernel of a communication task, which uses its group's entry in `groups` (by group
/// id; the communicators must outlive it). Operands are dense.
Kernel communication_kernel(const Task& task, std::span<Communicator* const> groups);

}  // namespace tokamak
