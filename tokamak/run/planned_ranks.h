// One rank of each pipeline stage of a mesh, planned.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tokamak/core/progress.h"
#include "tokamak/run/planned_run.h"

namespace tokamak {

/// The rank along tp with the smallest share of a vocabulary that does not divide by tp, whose plan
/// may need more scratch than the first's; none where it divides.
std::optional<int> uneven_tp_rank(const ModelSpec& model, const Mesh& mesh);

/// One rank of each pipeline stage, or every rank. Where twins will do, a rank between others whose
/// stages hold as much as those of an earlier one is that one's twin (plan/stage_twin.h), and a
/// rank whose work is that of another one of its stage has the plan of that one.
class PlannedRanks {
 public:
  enum class Which : uint8_t {
    kStages,     ///< one of each stage, some as twins
    kOwnStages,  ///< one of each stage; every plan has the labels of its own stages
    kAll,        ///< every rank, most as twins
    kOwnAll,     ///< every rank; every plan is its own
  };

  struct Rank {
    int rank = 0;  ///< of the world
    const Plan* plan = nullptr;
    const Plan* validation = nullptr;    ///< or none
    const GroupTable* groups = nullptr;  ///< of this rank, by the ids of `plan`

    /// Bytes that binding allocates.
    int64_t peak_bytes() const;
  };

  /// `shape` may be of any rank; `place` is that of the planned ones among the ranks of their
  /// stage. Throws Error where a stage cannot be planned.
  PlannedRanks(const ModelSpec& model, RunShape shape, const Target& target, Which which,
               int place = 0, const Progress& progress = {});

  /// Those to be priced.
  const std::vector<Rank>& ranks() const { return ranks_; }

  /// With most bytes; the first of equals. Of the end stages uneven_tp_rank() is looked at too.
  const Rank& fullest() const;

 private:
  class Planner;

  std::vector<std::unique_ptr<PlannedRun>> runs_;
  std::vector<std::unique_ptr<Plan>> twins_;
  std::vector<std::unique_ptr<GroupTable>> groups_;  // of ranks with others' plans
  std::vector<Rank> ranks_;
  std::vector<Rank> others_;  // not to be priced
};

}  // namespace tokamak
