// Ranks agree before step 0 that they are about to do the same.
#pragma once

#include <span>
#include <string>

#include "tokamak/comm/communicator.h"

namespace tokamak {

/// What one rank says: a config key and its value, or a name and a digest.
struct AgreementItem {
  std::string key;
  std::string value;
};

/// Throws Error on every rank unless all say the same in the same order: "ranks disagree:
/// training.seed is 1 on ranks 0-2 and 7 on rank 3". Collective over the world.
void agree(World& world, std::span<const AgreementItem> items);

}  // namespace tokamak
