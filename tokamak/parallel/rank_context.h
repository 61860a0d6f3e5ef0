// What `distribute` knows of one rank: its place in the mesh and its stages.
#pragma once

#include <span>

#include "tokamak/graph/mesh.h"
#include "tokamak/parallel/distribute.h"

namespace tokamak {

struct RankContext {
  const DistributeOptions* options = nullptr;
  MeshCoordinates at{};
  GroupTable* groups = nullptr;

  int degree(AxisSet axes) const { return options->mesh.degree(axes); }

  int coordinate(MeshAxis axis) const { return at[axis]; }

  /// This rank's place among those that differ from it in `axes` only.
  int index_in(AxisSet axes) const;

  /// Enters a group into the table, for communication that is emitted.
  CommGroup group(AxisSet axes, GroupPurpose purpose = GroupPurpose::kGeneral) const;

  /// The group of the ranks that have these coordinates on `axis` and else this rank's.
  CommGroup group_along(MeshAxis axis, std::span<const int> coordinates,
                        GroupPurpose purpose) const;

  /// The group of messages between two pp coordinates, one of them this rank's.
  CommGroup message_group(int from, int to) const;

  int stage_of(int32_t module) const;

  /// With the stage of its module.
  Label label_of(const Node& node) const;

  /// The pp coordinate that runs `stage`.
  int pp_of(int stage) const;

  bool runs_stage(int stage) const { return pp_of(stage) == coordinate(MeshAxis::kPp); }
};

}  // namespace tokamak
