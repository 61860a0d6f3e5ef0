#include "tokamak/graph/mesh.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include <fmt/format.h>

#include "tokamak/core/enum_array.h"
#include "tokamak/core/error.h"

namespace tokamak {

std::string_view name_of(MeshAxis axis) {
  constexpr EnumArray<MeshAxis, std::string_view, kNumMeshAxes> kNames{"pp", "dp_replicate",
                                                                       "dp_shard", "cp", "tp"};
  return kNames[axis];
}

std::string to_string(AxisSet axes) {
  std::string text;
  for (size_t a = 0; a < kNumMeshAxes; ++a) {
    const auto axis = static_cast<MeshAxis>(a);
    if (!axes.contains(axis)) continue;
    if (!text.empty()) text += " x ";
    text += name_of(axis);
  }
  return text;
}

int Mesh::degree(AxisSet axes) const {
  int product = 1;
  for (size_t a = 0; a < kNumMeshAxes; ++a) {
    if (axes.contains(static_cast<MeshAxis>(a))) product *= degrees[a];
  }
  return product;
}

int Mesh::size() const {
  return std::accumulate(degrees.begin(), degrees.end(), 1, std::multiplies<>());
}

MeshCoordinates Mesh::coordinates(int rank) const {
  MeshCoordinates at{};
  for (size_t a = kNumMeshAxes; a-- > 0;) {
    at[a] = rank % degrees[a];
    rank /= degrees[a];
  }
  return at;
}

int Mesh::rank_of(const MeshCoordinates& at) const {
  int rank = 0;
  for (size_t a = 0; a < kNumMeshAxes; ++a) rank = rank * degrees[a] + at[a];
  return rank;
}

std::vector<int> Mesh::group_of(int rank, AxisSet axes) const {
  std::vector<int> members;
  MeshCoordinates at = coordinates(rank);
  for (size_t a = 0; a < kNumMeshAxes; ++a) {
    if (axes.contains(static_cast<MeshAxis>(a))) at[a] = 0;
  }
  const int count = degree(axes);
  for (int i = 0; i < count; ++i) {
    int rest = i;
    for (size_t a = kNumMeshAxes; a-- > 0;) {
      if (!axes.contains(static_cast<MeshAxis>(a))) continue;
      at[a] = rest % degrees[a];
      rest /= degrees[a];
    }
    members.push_back(rank_of(at));
  }
  return members;
}

std::string group_name(AxisSet axes, GroupPurpose purpose) {
  constexpr std::array<std::string_view, 8> kWords{
      "", " again", " covered", " ring", " gather", " reduce", " replicas reduce", " tied weights"};
  return to_string(axes).append(kWords.at(static_cast<size_t>(purpose)));
}

std::string message_name(int from, int to) {
  return fmt::format("pp {} to {}", from, to);
}

CommGroup GroupTable::add(const Entry& group, int rank) {
  const auto member = std::find(group.ranks.begin(), group.ranks.end(), rank);
  TOK_CHECK(member != group.ranks.end(), "rank {} is not in group {}", rank, group.name);
  auto it = std::find(entries.begin(), entries.end(), group);
  if (it == entries.end()) it = entries.insert(entries.end(), group);
  return {.id = static_cast<int>(it - entries.begin()),
          .size = static_cast<int>(group.ranks.size()),
          .rank = static_cast<int>(member - group.ranks.begin())};
}

}  // namespace tokamak
