// Steps that a device may still be computing, and the results that the host reads of each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tokamak/parallel/distribute.h"
#include "tokamak/run/planned_run.h"

namespace tokamak {

/// A step that was issued and whose loss is not yet known.
struct IssuedStep {
  int64_t step = 0;
  double lr = 0.0;
  int64_t tokens_seen = 0;
  int64_t label_tokens = 0;
  double norm_limit = 0.0;
};

/// The State that the host reads of each step, and its place in a row of results.
struct ResultsOfStep {
  explicit ResultsOfStep(const PlannedRun& run)
      : states{run.step().loss, run.step().grad_norm},
        own_loss(add(run.states().find(run.states()[states[0]].name + std::string(kOwnTerms)))),
        saturated(add(run.states().find(kSaturatedSites))) {}

  /// Returns nothing where the run has no such State.
  std::optional<size_t> add(StateId state) {
    if (!state.valid()) return std::nullopt;
    states.push_back(state);
    return states.size() - 1;
  }

  std::vector<StateId> states;
  std::optional<size_t> own_loss;   ///< this rank's terms, if there are others
  std::optional<size_t> saturated;  ///< the count of sites, if scales are delayed
};

}  // namespace tokamak
