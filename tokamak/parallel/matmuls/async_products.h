// Async tensor parallelism: matmuls run by chunks of rows on a ring of shifts, while their input
// arrives or their output leaves.
#pragma once

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "tokamak/graph/graph.h"
#include "tokamak/ops/layout/pack.h"
#include "tokamak/parallel/local_values.h"
#include "tokamak/parallel/matmuls/tensor_ring.h"

namespace tokamak {

/// Whether `n` may run by chunks of its first input's rows.
bool is_product(const Node& n);

class AsyncProducts {
 public:
  /// Emits into `local`. All must outlive it. Without async_tp no matmul runs by chunks.
  AsyncProducts(const Graph& global, const std::vector<NodePlacement>& placements,
                const RankContext& context, LocalValues& values, Graph& local);

  /// Matmuls of one gathered input, which share a ring.
  struct Gathered {
    TensorRing ring;
    std::vector<int32_t> nodes;
  };

  /// Returns the matmuls from node `i` on that share its input, if that is not gathered yet.
  std::optional<Gathered> gathered(int32_t i) const;

  /// A node as this rank runs it; a gathered matmul lacks its first input.
  struct LocalOp {
    AnyOp op;
    std::vector<Value> in;
  };

  /// Multiplies each chunk as it arrives; returns the matmuls' whole outputs.
  std::vector<Value> multiply(const Gathered& gathered, std::vector<LocalOp> products);

  /// Whether node `i` waits until its first user says if its partial sums are scattered. Matmuls
  /// do, and sums of nothing but matmuls.
  bool defers(int32_t i) const;

  /// Defers a matmul with its inputs, or a sum of deferred values, which has none.
  void defer(int32_t i, LocalOp op) { deferred_[{i, 0}] = std::move(op); }

  bool is_deferred(Value v) const { return deferred_.contains(v); }

  /// Makes a deferred value: in chunks on a ring if `want` cuts it, else whole.
  void settle(Value v, const Placement& want);

 private:
  std::optional<TensorRing> ring_between(const Placement& cut, const Placement& other,
                                         const TensorType& whole) const;
  Value emit_rows(Value v, const std::optional<SliceDim>& rows);

  const Graph& global_;
  const std::vector<NodePlacement>& placements_;
  const RankContext& context_;
  LocalValues& values_;
  Graph& g_;
  std::map<Value, std::vector<int32_t>> users_;  // in order; empty without async_tp
  std::map<Value, LocalOp> deferred_;
};

}  // namespace tokamak
