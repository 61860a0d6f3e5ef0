// What values of the global graph have become on one rank: parts and terms of them, and reshards.
#pragma once

#include <map>
#include <vector>

#include "tokamak/graph/graph.h"
#include "tokamak/parallel/decide.h"
#include "tokamak/parallel/rank_context.h"

namespace tokamak {

/// A parameter, or its compute copy.
bool is_weight(const Graph& global, Value v);

/// A value as this rank has it in one placement.
struct LocalValue {
  Placement placement;
  int stage = 0;  ///< where it is; -1: of State, in all
  Value value;
  bool is_for_backward = false;
};

class LocalValues {
 public:
  /// Emits into `local`. All must outlive it.
  LocalValues(const Graph& global, const std::vector<NodePlacement>& placements,
              const RankContext& context, Graph& local)
      : global_(global), placements_(placements), context_(context), g_(local) {}

  /// The value as `want` says, for `stage`; reshards what there is and keeps it for the next.
  Value get(Value v, const Placement& want, int stage);

  /// Enters what was made of `v`. The first is the value itself, which may cross stages; others
  /// belong to theirs.
  void add(Value v, const LocalValue& made) { values_[v].push_back(made); }

  /// What there is of `v`; null before it is made.
  const std::vector<LocalValue>* find(Value v) const;

  /// Where the backward has a gather of its own in place of one that is emitted now, adds that one
  /// too. REQUIRES: before the other is added, so that the backward finds it first.
  void gather_again(Value v, const LocalValue& from, const Placement& want, int stage);

  /// This rank's range of a dim that `axis` cuts; empty where it does not.
  Range range_of(const AxisPlacement& p, PlacementAxis axis) const;

  /// Cuts nest in the order of the axes; a dim that several axes cut is cut evenly.
  TensorType local_type(const TensorType& whole, const Placement& p) const;

 private:
  Value leaf(Value v);
  LocalValue resharded(Value v, LocalValue from, const Placement& want, int stage,
                       GroupPurpose purpose = GroupPurpose::kGeneral);
  void sum_before_it_crosses(Value v, const Placement& want, std::vector<LocalValue>& have);

  const Graph& global_;
  const std::vector<NodePlacement>& placements_;
  const RankContext& context_;
  Graph& g_;
  std::map<Value, std::vector<LocalValue>> values_;
};

}  // namespace tokamak
