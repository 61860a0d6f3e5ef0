#include "tokamak/parallel/rank_context.h"

#include <vector>

namespace tokamak {

int RankContext::index_in(AxisSet axes) const {
  int index = 0;
  for (size_t a = 0; a < kNumMeshAxes; ++a) {
    if (axes.contains(static_cast<MeshAxis>(a))) index = index * options->mesh.degrees[a] + at[a];
  }
  return index;
}

CommGroup RankContext::group(AxisSet axes, const std::string& purpose) const {
  const std::string name = to_string(axes) + (purpose.empty() ? "" : " " + purpose);
  return groups->add(name, options->mesh.group_of(options->rank, axes), options->rank);
}

CommGroup RankContext::group_along(MeshAxis axis, std::span<const int> coordinates,
                                   const std::string& name) const {
  std::vector<int> members;
  MeshCoordinates member = at;
  for (const int c : coordinates) {
    member[static_cast<size_t>(axis)] = c;
    members.push_back(options->mesh.rank_of(member));
  }
  return groups->add(name, members, options->rank);
}

int RankContext::stage_of(int32_t module) const {
  const auto& stages = options->stage_of_module;
  return stages.empty() ? 0 : stages[static_cast<size_t>(module)];
}

int RankContext::pp_of(int stage) const {
  const auto& ranks = options->pipeline.rank_of_stage;
  return ranks.empty() ? 0 : ranks[static_cast<size_t>(stage)];
}

}  // namespace tokamak
