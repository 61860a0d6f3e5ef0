// Finds ranks that work longer than those that have the same work.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "tokamak/comm/communicator.h"
#include "tokamak/graph/mesh.h"
#include "tokamak/train/report/step_metrics.h"

namespace tokamak {

struct SlowRankOptions {
  double factor = 1.5;  ///< over the median of the ranks with the same work; 0 = off
  int64_t lines = 3;    ///< logged steps in a row before it is said
};

class SlowRanks {
 public:
  /// Ranks of one pipeline stage have the same work. Collective.
  SlowRanks(World& world, const Mesh& mesh, const SlowRankOptions& options);

  /// Takes this rank's mean seconds since the last logged step, of which waits for peers are no
  /// part. Returns a line that names each rank that has been slower for `lines` logged steps, its
  /// host and the phase in which it loses most, or "". Collective; the same on all ranks.
  std::string add(const PhaseSeconds& seconds);

 private:
  static constexpr std::array kPhases{"data", "forward", "backward", "optimizer"};
  using Seconds = std::array<double, kPhases.size()>;

  std::string line_of(int rank, const std::vector<Seconds>& all, const Seconds& usual) const;

  World& world_;
  SlowRankOptions o_;
  std::vector<std::vector<int>> stages_;
  std::vector<std::string> hosts_;
  std::vector<int64_t> slow_lines_;  ///< in a row, by rank
  bool is_warm_ = false;
};

}  // namespace tokamak
