// One rank of each pipeline stage of a mesh, planned.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tokamak/train/planned_run.h"

namespace tokamak {

/// The first rank of each pipeline stage, or every rank. A rank between others whose stages hold
/// as much as those of an earlier one is that one's twin (graph/stage_twin.h), where twins will do.
class PlannedRanks {
 public:
  enum class Which : uint8_t {
    kStages,     ///< one of each stage, some as twins
    kOwnStages,  ///< one of each stage; every plan has the labels of its own stages
    kAll,
  };

  struct Rank {
    int rank = 0;  ///< of the world
    const Plan* plan = nullptr;
    const Plan* validation = nullptr;  ///< or none

    /// Bytes that binding allocates.
    int64_t peak_bytes() const;
  };

  /// `shape` may be of any rank. Throws Error where a stage cannot be planned.
  PlannedRanks(const ModelSpec& model, RunShape shape, const Target& target, Which which);

  const std::vector<Rank>& ranks() const { return ranks_; }

  /// With most bytes; the first of equals.
  const Rank& fullest() const;

 private:
  std::vector<std::unique_ptr<PlannedRun>> runs_;
  std::vector<std::unique_ptr<Plan>> twins_;
  std::vector<Rank> ranks_;
};

}  // namespace tokamak
