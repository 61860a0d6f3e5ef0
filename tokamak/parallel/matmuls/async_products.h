// Async tensor parallelism: products that run by chunks of rows on a ring of shifts, as what they
// read arrives or what they make leaves.
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

/// Of the first input's rows: what may run by chunks of them.
bool is_product(const Node& n);

class AsyncProducts {
 public:
  /// Emits into `local`. All must outlive it. Without async_tp no product runs by chunks.
  AsyncProducts(const Graph& global, const std::vector<NodePlacement>& placements,
                const RankContext& context, LocalValues& values, Graph& local);

  /// Products of one input that is gathered for them, which share a ring.
  struct Gathered {
    TensorRing ring;
    std::vector<int32_t> nodes;
  };

  /// Those from node `i` on, where its input has not been gathered yet.
  std::optional<Gathered> gathered(int32_t i) const;

  /// A node as this rank runs it; of a gathered product without its first input.
  struct LocalOp {
    AnyOp op;
    std::vector<Value> in;
  };

  /// Multiplies each chunk as it arrives; the products' outputs, whole.
  std::vector<Value> multiply(const Gathered& gathered, std::vector<LocalOp> products);

  /// Whether node `i` waits for its first user to say if its partial sums are scattered: products,
  /// and sums of them alone.
  bool defers(int32_t i) const;

  /// A product with its inputs; a sum of deferred values has none.
  void defer(int32_t i, LocalOp op) { deferred_[{i, 0}] = std::move(op); }

  bool is_deferred(Value v) const { return deferred_.contains(v); }

  /// Makes a deferred value: in chunks on a ring if it is wanted cut, else whole.
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
