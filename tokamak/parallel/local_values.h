// A rank's share of each value of the global graph: parts, terms of sums, and reshards of them.
#pragma once

#include <map>
#include <vector>

#include "tokamak/graph/graph.h"
#include "tokamak/parallel/decide.h"
#include "tokamak/parallel/rank_context.h"

namespace tokamak {

/// Whether `v` is a parameter or its compute copy.
bool is_weight(const Graph& global, Value v);

/// A value as this rank has it in one placement.
struct LocalValue {
  Placement placement;
  int stage = 0;  ///< that has it; -1: all, since it is State
  Value value;
  bool is_for_backward = false;
};

class LocalValues {
 public:
  /// Emits into `local`. All must outlive it.
  LocalValues(const Graph& global, const std::vector<NodePlacement>& placements,
              const RankContext& context, Graph& local);

  /// Returns the value placed as `want`, for `stage`; reshards it if needed and keeps the result.
  Value get(Value v, const Placement& want, int stage);

  /// Enters what was computed from `v`. The first is the value itself, which may cross stages; each
  /// other belongs to its stage.
  void add(Value v, const LocalValue& made) { values_[v].push_back(made); }

  /// Returns this rank's range of a dim that `axis` cuts; empty where it cuts none.
  Range range_of(const AxisPlacement& p, PlacementAxis axis) const;

  /// Cuts nest in the order of the axes; a dim that several axes cut is cut evenly.
  TensorType local_type(const TensorType& whole, const Placement& p) const;

 private:
  Value leaf(Value v);
  /// If the backward does not reuse the gather that is emitted now, adds its own gather too.
  /// REQUIRES: called before the forward's gather is added, so that the backward finds its own
  /// first.
  void gather_again(Value v, const LocalValue& from, const Placement& want, int stage);
  LocalValue resharded(Value v, LocalValue from, const Placement& want, int stage,
                       GroupPurpose purpose = GroupPurpose::kGeneral);
  bool covers_collective(Shard from, Shard to) const;
  bool gathers_again(int stage) const;
  bool sums_beside_head(Value v, const LocalValue& from, const Placement& want, int stage) const;
  void sum_before_it_crosses(Value v, const Placement& want, std::vector<LocalValue>& have);

  const Graph& global_;
  const std::vector<NodePlacement>& placements_;
  const RankContext& context_;
  bool splits_backward_;
  Graph& g_;
  std::map<Value, std::vector<LocalValue>> values_;
};

}  // namespace tokamak
