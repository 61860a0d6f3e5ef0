// One rank of each pipeline stage of a mesh, planned.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tokamak/core/progress.h"
#include "tokamak/run/planned_run.h"

namespace tokamak {

/// Returns the rank along tp with the smallest share of a vocabulary that tp does not divide, since
/// its plan may need more scratch than the first rank's; nothing where tp divides it.
std::optional<int> uneven_tp_rank(const ModelSpec& model, const Mesh& mesh);

/// One rank of each pipeline stage, or every rank. Where twins are allowed, an inner rank whose
/// stages hold as much as those of an earlier rank is the twin of that rank (plan/stage_twin.h),
/// and a rank that does the same work as another of its stage shares its plan.
class PlannedRanks {
 public:
  enum class Which : uint8_t {
    kStages,     ///< one of each stage, some as twins
    kOwnStages,  ///< one of each stage, without twins: plans have their own stages' labels
    kAll,        ///< every rank, most as twins
    kOwnAll,     ///< every rank, each with its own plan
  };

  struct Rank {
    int rank = 0;  ///< of the world
    const Plan* plan = nullptr;
    const Plan* validation = nullptr;    ///< may be null
    const GroupTable* groups = nullptr;  ///< of this rank, by the ids of `plan`

    /// Returns the bytes that binding allocates.
    int64_t peak_bytes() const;
  };

  /// `shape` may be of any rank; `place` is the place of the planned ranks among those of their
  /// stage. Throws Error where a stage cannot be planned.
  PlannedRanks(const ModelSpec& model, RunShape shape, const Target& target, Which which,
               int place = 0, const Progress& progress = {});

  /// Returns the ranks that are to be priced.
  const std::vector<Rank>& ranks() const { return ranks_; }

  /// Returns the rank with most bytes, the first of equals. Includes uneven_tp_rank() of the first
  /// and last stage.
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
