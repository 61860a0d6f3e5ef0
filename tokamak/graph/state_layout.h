// Where State lies in memory; one layout serves all plans of a run.
#pragma once

#include <cstdint>
#include <vector>

#include "tokamak/graph/state.h"

namespace tokamak {

/// Offsets are multiples of this many bytes, so that any vector load is aligned.
inline constexpr int64_t kArenaAlignment = 512;

/// Where each State lies: kinds together, blocks together, in declaration order. A window lies in
/// its parent, an absent State nowhere.
struct StateLayout {
  static constexpr int64_t kNowhere = -1;

  std::vector<int64_t> offsets;  ///< bytes, by StateId
  int64_t bytes = 0;

  int64_t operator[](StateId id) const { return offsets[id.index]; }
};

StateLayout lay_out(const StateTable& states);

}  // namespace tokamak
