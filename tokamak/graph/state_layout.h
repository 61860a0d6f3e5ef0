// Where State lies in memory; one layout serves all plans of a run.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tokamak/graph/state.h"

namespace tokamak {

/// Offsets are multiples of this many bytes, so that any vector load is aligned.
inline constexpr int64_t kArenaAlignment = 512;

/// Where each State lies, in the device's memory or in the host's: kinds together, blocks together,
/// in declaration order. A window lies in its parent, an absent State nowhere.
struct StateLayout {
  static constexpr int64_t kNowhere = -1;

  std::vector<int64_t> offsets;  ///< bytes, by StateId
  std::vector<bool> in_host;     ///< by StateId
  int64_t bytes = 0;
  int64_t host_bytes = 0;

  int64_t operator[](StateId id) const { return offsets[id.index]; }

  bool is_in_host(StateId id) const { return in_host[id.index]; }
};

/// Lays out all State; `in_host` goes to the host's memory, which holds no windows.
StateLayout lay_out(const StateTable& states, std::span<const StateId> in_host = {});

}  // namespace tokamak
