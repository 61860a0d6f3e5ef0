// Proofs that the plans of a run are sound and that those of all its ranks fit together.
#pragma once

#include <span>
#include <string>

#include "tokamak/plan/rank_step.h"
#include "tokamak/run/planned_run.h"

namespace tokamak {

/// Throws Bug unless each of the rank's plans is sound: see check_plan().
void prove_plans(const PlannedRun& run);

/// Returns what other ranks notice of a rank's steps: a line for each of PlannedRun::plans(), which
/// is to_text() of rank_step.h.
std::string step_lines(const PlannedRun& run);

/// Throws Bug unless the ranks' steps fit together, plan by plan: see check_kinds(). `lines` are
/// step_lines() of the first rank of each kind.
void prove_ranks(const RankKinds& kinds, std::span<const std::string> lines);

/// The kinds of a mesh's ranks (rank_step.h) and how many ranks were planned to find them.
struct PlannedKinds {
  RankKinds kinds;
  int num_planned = 0;
};

/// Plans a rank of each kind of the mesh of `own`, on `num_threads` threads, and proves that the
/// plans of `own` are sound and that all ranks fit together. Where two coordinates of an axis other
/// than pp do the same, in the first and in the last pipeline stage, those between are taken to do
/// so, too, since shares never grow from one coordinate to the next. The ranks of a
/// started run compare themselves instead.
PlannedKinds prove_all_ranks(const PlannedRun& own, const Target& target, int num_threads);

}  // namespace tokamak
