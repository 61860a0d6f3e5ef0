#include "tokamak/train/slowest_place.h"

#include <algorithm>
#include <numeric>

#include "tokamak/price/collective_time.h"

namespace tokamak {
namespace {

double gather_s(const Mesh& mesh, int rank, MeshAxis axis, const price::Machine& machine) {
  constexpr double kBytes = 64 << 20;
  const std::vector<int> group = mesh.group_of(rank, {axis});
  return price::collective_seconds(price::Collective::kAllGather, kBytes,
                                   price::layout_of(group, machine), machine);
}

}  // namespace

int slowest_place(const Mesh& mesh, const price::Machine& machine) {
  const int tp = mesh.degree(MeshAxis::kTp);
  const int span = tp * mesh.degree(MeshAxis::kCp);
  const int num_stages = mesh.degree(MeshAxis::kPp);
  const int ranks_per_stage = mesh.size() / num_stages;
  const auto cuts = [&](int devices, int group) {
    return devices > 0 && devices < mesh.size() && devices % group != 0 && group % devices != 0;
  };
  int64_t period = 0;  // after which groups lie as before
  for (const price::Level& level : machine.levels) {
    if (cuts(level.num_devices, tp) || cuts(level.num_devices, span))
      period = std::lcm<int64_t>(period == 0 ? span : period, level.num_devices);
  }
  if (period == 0) return 0;
  int slowest = 0;
  double longest_s = 0.0;
  const auto num_places = static_cast<int>(std::min<int64_t>(period, ranks_per_stage));
  for (int place = 0; place < num_places; place += tp) {
    double seconds = 0.0;
    for (int stage = 0; stage < num_stages; ++stage) {
      const int rank = stage * ranks_per_stage + place;
      for (const MeshAxis axis : {MeshAxis::kTp, MeshAxis::kCp})
        seconds += gather_s(mesh, rank, axis, machine);
    }
    constexpr double kMore = 1.0 + 1e-9;
    if (seconds > longest_s * kMore) {
      longest_s = seconds;
      slowest = place;
    }
  }
  return slowest;
}

}  // namespace tokamak
