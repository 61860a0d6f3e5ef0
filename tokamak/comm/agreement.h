// Checks before step 0 that all ranks are about to do the same.
#pragma once

#include <span>
#include <string>

#include "tokamak/comm/communicator.h"

namespace tokamak {

/// One rank's statement: a config key and its value, or a name and a digest.
struct AgreementItem {
  std::string key;
  std::string value;
};

/// Throws Error on every rank unless all give the same items in the same order: "ranks disagree:
/// training.seed is 1 on ranks 0-2 and 7 on rank 3". The call is collective over the world.
void agree(World& world, std::span<const AgreementItem> items);

}  // namespace tokamak
