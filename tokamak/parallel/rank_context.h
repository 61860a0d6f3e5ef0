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

  /// Returns this rank's place among the ranks that differ from it in `axes` only.
  int index_in(AxisSet axes) const;

  /// Enters a group into the table, for communication that is emitted.
  CommGroup group(AxisSet axes, GroupPurpose purpose = GroupPurpose::kGeneral) const;

  /// Returns the group of ranks that have these coordinates on `axis` and otherwise this rank's.
  CommGroup group_along(MeshAxis axis, std::span<const int> coordinates,
                        GroupPurpose purpose) const;

  /// Returns the group of messages between two pp coordinates, one of them this rank's.
  CommGroup message_group(int from, int to) const;

  int stage_of(int32_t module) const;

  /// Returns the label of what node `i` of the global graph becomes: its own, with the stage of its
  /// module.
  Label label_of(const Graph& global, int32_t i) const;

  /// Returns the pp coordinate that runs `stage`.
  int pp_of(int stage) const;

  bool runs_stage(int stage) const { return pp_of(stage) == coordinate(MeshAxis::kPp); }
};

}  // namespace tokamak
