// The communicators of a plan's groups.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "tokamak/comm/communicator.h"
#include "tokamak/graph/mesh.h"

namespace tokamak {

class Communicators {
 public:
  /// Makes a communicator for each of `groups`. Collective over the world: each member of a group
  /// has it in its table. All ranks go through their groups in one order (by ranks, then by name),
  /// so that no two of them wait for each other. The world must outlive it. `gathered` is indexed
  /// by group id, or empty.
  Communicators(World& world, const GroupTable& groups,
                std::span<const GatheredMemory> gathered = {});

  /// By group id.
  std::span<Communicator* const> groups() const { return groups_; }

 private:
  std::vector<std::unique_ptr<Communicator>> owned_;
  std::vector<Communicator*> groups_;
};

}  // namespace tokamak
