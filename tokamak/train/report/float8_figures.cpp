#include "tokamak/train/report/float8_figures.h"

#include <fmt/ranges.h>

#include "tokamak/ops/float8/code_counts.h"
#include "tokamak/parallel/matmuls/float8_stats.h"

namespace tokamak {

std::vector<Float8Figures> read_float8_figures(const StateAccess& access) {
  const StateTable& states = access.states();
  const std::vector<std::string> sites = float8_sites(states);
  if (sites.empty()) return {};
  const auto counts = access.read<double>(states.find(kFloat8Counts));
  const auto greatest = access.read<float>(states.find(kFloat8Greatest));
  std::vector<Float8Figures> figures;
  for (size_t i = 0; i < sites.size(); ++i) {
    const double* count = &counts[i * CodeCounts::kNumCounts];
    figures.push_back({.site = sites[i],
                       .amax = greatest[2 * i],
                       .scale = 1.0 / static_cast<double>(greatest[2 * i + 1]),
                       .zeros = count[1] / count[0],
                       .largest = count[2] / count[0]});
  }
  return figures;
}

std::string float8_lines(World& world, const Mesh& mesh, const StateAccess& access, int64_t step) {
  MeshCoordinates at = mesh.coordinates(world.rank());
  at[MeshAxis::kPp] = 0;
  std::string lines;
  if (at == MeshCoordinates{}) {
    for (const Float8Figures& figures : read_float8_figures(access))
      lines += to_json_line(step, figures);
  }
  return fmt::format("{}", fmt::join(world.all_gather_text(lines), ""));
}

}  // namespace tokamak
