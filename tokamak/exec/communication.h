// Communication ops as kernels: each maps to one call of a Communicator.
#pragma once

#include "tokamak/comm/communicator.h"
#include "tokamak/exec/kernel.h"
#include "tokamak/plan/plan.h"

namespace tokamak {

/// The kernel of a task of communication over its group's member of `groups` (a communicator for
/// each group id, which must outlive it). Operands are dense.
Kernel communication_kernel(const Task& task, std::span<Communicator* const> groups);

}  // namespace tokamak
