// The nodes that gather weights and reduce gradients, and the State they work on.
#pragma once

#include <string>
#include <vector>

#include "tokamak/graph/graph.h"
#include "tokamak/ops/optimizer/stochastic_rounding.h"
#include "tokamak/parallel/buckets/bucket_layout.h"

namespace tokamak {

/// The buckets of all stages, with their State declared in `local`.
class Buckets {
 public:
  Buckets(BucketLayout layout, StateTable& local, const RankContext& context);

  /// Forgets what was gathered, since another graph over the same parameters follows.
  void begin_graph() {
    for (Bucket& b : layout_.buckets) b.weights.clear();
  }

  /// Returns the compute copy of a parameter for `stage`; emits its bucket's gather if there is
  /// none.
  Value weight(Graph& g, StateId global, int stage);

  /// Returns the same, or the cast of the master where this rank has all of both:
  /// LowPrecision::lower() then starts from the master.
  Value weight_for_low_precision(Graph& g, StateId global, int stage);

  /// Where and how a gradient leaf of the global graph accumulates in `stage`.
  struct Destination {
    Bucket* bucket = nullptr;
    size_t tensor = 0;
    Value into;  ///< its State, or the previous contribution
    AccumulateMode mode = AccumulateMode::kAlways;
  };

  Destination destination(Graph& g, StateId global_gradient, int stage);

  /// Records that the destination now holds `sum`; emits the reduction after the bucket's last
  /// contribution.
  void contributed(Graph& g, const Destination& to, Value sum);

  /// Emits what happens to gradients once a step after all microbatches: sums over stages that
  /// share weights.
  void finish(Graph& g);

  std::vector<TensorPiece> pieces() const;
  std::vector<UpdateUnit> units(Graph& g) const;

  /// Says for people what becomes of compute copies; "" where the masters are in the compute dtype.
  std::string copies_note() const;

 private:
  void declare(Bucket& bucket);
  void declare_copy(Bucket& bucket);
  void declare_rings();
  size_t declare_rings(std::vector<Bucket*> users, size_t first);
  size_t gather_module(Graph& g, size_t b);
  void gather(Graph& g, Bucket& bucket);
  void cast_parts(Graph& g, Bucket& bucket, Value flat);
  static Label label_of(const Bucket& bucket, Phase phase);
  Value part_of(Graph& g, const BucketTensor& t, Value flat) const;
  void reduce(Graph& g, Bucket& bucket);
  void sum_over_tp(Graph& g, const Bucket& bucket, When when);
  enum class Gathers : uint8_t { kOnce, kEachMicrobatch, kTwice };
  Gathers gathers(const Bucket& bucket) const;
  bool keeps_copy(const Bucket& bucket) const;
  double norm_weight(const BucketTensor& t) const;
  bool owns(const BucketTensor& t) const;
  ElementPlaces places_of(const BucketTensor& t, int64_t at) const;
  StateId declare_state(const std::string& name, DType dtype, int64_t numel, StateKind kind,
                        const Bucket& bucket);
  StateId declare_window(const std::string& name, TensorType type, StateId parent, int64_t begin,
                         const Bucket& bucket);

  StateTable& local_;
  const RankContext& context_;
  BucketLayout layout_;
};

}  // namespace tokamak
