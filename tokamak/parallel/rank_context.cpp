#include "tokamak/parallel/rank_context.h"

#include <array>
#include <vector>

namespace tokamak {
namespace {

// Returns the ranks that have these coordinates on `axis` and otherwise those of the context's
// rank.
std::vector<int> ranks_along(const RankContext& context, MeshAxis axis,
                             std::span<const int> coordinates) {
  std::vector<int> members;
  MeshCoordinates member = context.at;
  for (const int c : coordinates) {
    member[axis] = c;
    members.push_back(context.options->mesh.rank_of(member));
  }
  return members;
}

}  // namespace

int RankContext::index_in(AxisSet axes) const {
  int index = 0;
  for (size_t a = 0; a < kNumMeshAxes; ++a) {
    if (axes.contains(static_cast<MeshAxis>(a))) index = index * options->mesh.degrees[a] + at[a];
  }
  return index;
}

CommGroup RankContext::group(AxisSet axes, GroupPurpose purpose) const {
  return groups->add({.name = group_name(axes, purpose),
                      .ranks = options->mesh.group_of(options->rank, axes),
                      .axes = axes,
                      .purpose = purpose},
                     options->rank);
}

CommGroup RankContext::group_along(MeshAxis axis, std::span<const int> coordinates,
                                   GroupPurpose purpose) const {
  return groups->add({.name = group_name({axis}, purpose),
                      .ranks = ranks_along(*this, axis, coordinates),
                      .axes = {axis},
                      .purpose = purpose},
                     options->rank);
}

CommGroup RankContext::message_group(int from, int to) const {
  return groups->add({.name = message_name(from, to),
                      .ranks = ranks_along(*this, MeshAxis::kPp, std::array{from, to}),
                      .axes = {MeshAxis::kPp},
                      .purpose = GroupPurpose::kMessage},
                     options->rank);
}

int RankContext::stage_of(int32_t module) const {
  const auto& stages = options->stage_of_module;
  return stages.empty() ? 0 : stages[module];
}

Label RankContext::label_of(const Graph& global, int32_t i) const {
  Label label = global.node(i).label;
  label.stage = stage_of(label.module);
  label.origin = {.value = i};
  return label;
}

int RankContext::pp_of(int stage) const {
  const auto& ranks = options->pipeline.rank_of_stage;
  return ranks.empty() ? 0 : ranks[stage];
}

}  // namespace tokamak
