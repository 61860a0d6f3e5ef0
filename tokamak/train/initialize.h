// How parameters start.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tokamak/exec/executor.h"

namespace tokamak {

/// Elements [first, first + n) of a new parameter as `decl` says, where n fills `out` with elements
/// of decl.type.dtype. A pure function of (seed, name, element): the same on any mesh and any
/// backend.
void initial_values(const StateDecl& decl, uint64_t seed, int64_t first, std::span<std::byte> out);

/// Writes every parameter's initial values; moments start at zero.
void initialize(const StateAccess& access, uint64_t seed);

}  // namespace tokamak
