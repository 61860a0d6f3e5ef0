// Where storages lie: which arena each belongs to, how long it is kept, and its offset.
#pragma once

#include "tokamak/plan/storages.h"

namespace tokamak {

/// Assigns offsets so that lifetimes which overlap in time never overlap in bytes; returns the
/// bytes needed. It places the largest first, each at the lowest offset that fits.
int64_t pack(std::vector<Lifetime>& lifetimes);

/// Chooses the arena of each storage from the segments that write and read it. Throws Bug where a
/// value of a microbatch is read once a step.
void choose_arenas(Buffers& b);

/// Lengthens the lives of storages that tasks of other streams use (buffers.h).
void hold_operands(Buffers& b);

/// Sets the offsets of all storages and workspaces, and the bytes of arenas, of slot classes and of
/// saved activations in scratch.
void pack_arenas(Buffers& b);

}  // namespace tokamak
