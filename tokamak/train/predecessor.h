// Ranks of the previous attempt that are dying and still hold their memory.
#pragma once

namespace tokamak {

/// The variable that names their processes on this host; `tokamak launch --max-restarts` sets it.
inline constexpr const char* kPredecessorsVariable = "TOKAMAK_PREDECESSORS";

/// Whether the variable names any process, which may be gone by now.
bool has_predecessors();

/// Whether one of them still holds memory.
bool are_predecessors_alive();

/// Returns once they are gone, or after a bounded time: a GPU's memory and gigabytes that are
/// pinned are free only then. Returns the seconds that it has waited.
double await_predecessors();

}  // namespace tokamak
