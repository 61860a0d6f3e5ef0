#include "tokamak/train/planned_ranks.h"

#include <algorithm>
#include <map>
#include <set>

#include "tokamak/graph/stage_twin.h"

namespace tokamak {
namespace {

// What tells ranks between others apart: how much each stage holds, where in the period of the
// recompute policy it begins, and whether it is next to one of the ends, which may hold no layer
// and hand over the embedding's partial sums where no cut sums are wanted.
std::vector<int> kind_of(const RunShape& shape, const std::vector<int>& stages) {
  const DistributeOptions& d = shape.distribute;
  const bool has_period = shape.recompute.mode == RecomputePolicy::Mode::kSelectiveLayers;
  const int period = has_period ? shape.recompute.every_nth_block : 1;
  const auto& all = d.stage_of_module;
  std::vector<int> kind;
  for (const int stage : stages) {
    kind.push_back(static_cast<int>(std::count(all.begin(), all.end(), stage)));
    kind.push_back(static_cast<int>(std::find(all.begin(), all.end(), stage) - all.begin()) %
                   period);
    kind.push_back(stage == 1 || stage + 2 == d.pipeline.num_stages() ? stage : 0);
  }
  return kind;
}

}  // namespace

std::optional<int> uneven_tp_rank(const ModelSpec& model, const Mesh& mesh) {
  const int tp = mesh.degree(MeshAxis::kTp);
  if (model.vocab_size % tp == 0) return std::nullopt;
  MeshCoordinates last{};
  last[static_cast<size_t>(MeshAxis::kTp)] = tp - 1;
  return mesh.rank_of(last);
}

int64_t PlannedRanks::Rank::peak_bytes() const {
  return tokamak::peak_bytes(*plan, validation);
}

PlannedRanks::PlannedRanks(const ModelSpec& model, RunShape shape, const Target& target,
                           Which which, int place) {
  DistributeOptions& d = shape.distribute;
  const WholeGraphs whole(model, shape, target);
  const int num_stages = d.mesh.degree(MeshAxis::kPp);
  const int ranks_per_stage = d.mesh.size() / num_stages;
  const auto planned = [&](int rank) -> Rank {
    d.rank = rank;
    runs_.push_back(std::make_unique<PlannedRun>(model, shape, target, whole));
    const PlannedRun& run = *runs_.back();
    return {.rank = rank, .plan = &run.plan(), .validation = run.validation_plan()};
  };
  const auto plan = [&](int rank) { ranks_.push_back(planned(rank)); };
  if (which == Which::kAll) {
    for (int rank = 0; rank < d.mesh.size(); ++rank) plan(rank);
    return;
  }
  if (const std::optional<int> uneven = uneven_tp_rank(model, d.mesh)) {
    for (const int at : std::set{0, num_stages - 1})
      others_.push_back(planned(at * ranks_per_stage + *uneven));
  }
  std::map<std::vector<int>, int> kinds;  // of ranks that are planned
  for (int at = 0; at < num_stages; ++at) {
    const int rank = at * ranks_per_stage + place;
    const bool has_both_neighbours = at > 0 && at + 1 < num_stages;
    if (which == Which::kOwnStages || !has_both_neighbours) {
      plan(rank);
      continue;
    }
    const std::vector<int> stages = d.pipeline.stages_of(at);
    const auto [like, is_new] = kinds.try_emplace(kind_of(shape, stages), at);
    if (is_new) {
      plan(rank);
      continue;
    }
    const Rank& from = ranks_[static_cast<size_t>(like->second)];
    twins_.push_back(std::make_unique<Plan>(
        twin_of(*from.plan, {.from = like->second,
                             .to = at,
                             .ranks_per_stage = ranks_per_stage,
                             .stages_from = d.pipeline.stages_of(like->second),
                             .stages_to = stages,
                             .items = lower_schedule(d.pipeline, at, 1)})));
    ranks_.push_back({.rank = rank, .plan = twins_.back().get(), .validation = from.validation});
  }
}

const PlannedRanks::Rank& PlannedRanks::fullest() const {
  const Rank* fullest = &ranks_.front();
  for (const auto* ranks : {&ranks_, &others_}) {
    for (const Rank& rank : *ranks) {
      if (rank.peak_bytes() > fullest->peak_bytes()) fullest = &rank;
    }
  }
  return *fullest;
}

}  // namespace tokamak
