// What a rank plans, allocates and opens before the first step.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tokamak/train/report/start_phases.h"
#include "tokamak/train/trainer.h"

namespace tokamak {

/// The parts that a rank makes by itself, before any collective.
struct RankParts {
  /// Throws Error with the plan's table if the device has less memory than the plan needs.
  RankParts(const TrainerOptions& options, Backend& backend);

  std::vector<const Plan*> plans() const;

  PlannedRun run;
  double awaited_s = 0.0;  ///< until ranks of the attempt before had freed their memory
  Memory memory;
  StateAccess access;
  Loader loader;
  std::unique_ptr<Loader> validation_loader;
};

/// Returns the line of the rank whose plan holds most memory. Collective.
std::string memory_line(const RankParts& parts, World& world);

/// Makes the parts on all ranks, and checks that the ranks agree on what they run: otherwise they
/// would compute nonsense, or wait for each other forever. Ends the phase in `phases`. Collective;
/// throws alike on all ranks.
std::unique_ptr<RankParts> make_parts(const TrainerOptions& options, World& world, Backend& backend,
                                      StartPhases& phases);

}  // namespace tokamak
