// Flat buckets of parameters: how weights lie in memory, who owns what, and the nodes that gather
// weights and reduce gradients.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "tokamak/graph/graph.h"
#include "tokamak/parallel/distribute.h"

namespace tokamak {

/// How the gradient of a tensor is spread over tp, which decides where in the bucket it lies.
enum class TpGradient : uint8_t {
  kAlone,       ///< the tensor is cut and nobody else has this part
  kWhole,     ///< every rank has the whole gradient
  kReplicas,  ///< cut, but some ranks share the part and each has a term of its gradient
  kPartial,   ///< every rank has a term of the gradient
};

struct BucketTensor {
  std::string name;
  StateId global;
  TensorType whole;
  TensorType local;  ///< dtype of the master
  AxisPlacement tp;
  TpGradient gradient = TpGradient::kAlone;
  Init init;
  bool is_tied_copy = false;  ///< an earlier stage on another rank owns it
  int64_t begin = 0;          ///< in the bucket
  StateId grad_window;
  Value grad_sum;           ///< the contributions so far
  std::vector<int> stages;  ///< on this bucket's rank, that use it
};

struct Bucket {
  std::string name;
  int32_t block = -1;
  int32_t module = 0;
  int stage = 0;
  bool is_here = true;         ///< this rank runs the stage
  std::vector<int> tie_ranks;  ///< pp coordinates that hold a copy; one = not tied over ranks
  std::vector<BucketTensor> tensors;
  int64_t numel = 0;  ///< padded: a multiple of 128 for each owner
  int64_t slice = 0;  ///< what one owner has
  StateId master, first_moment, second_moment;
  StateId full_gradient;  ///< numel; a window of a ring where gradients are stored in slices
  StateId gradient;       ///< slice
  int contributions_left = 0;
  int32_t first_contribution = 0;  ///< nodes of the global graph
  int32_t last_contribution = 0;
  std::vector<Value> weights;  ///< compute copies by tensor, once gathered
};

/// What `distribute` knows of one rank.
struct RankContext {
  const DistributeOptions* options = nullptr;
  MeshCoordinates at{};
  GroupTable* groups = nullptr;

  int degree(AxisSet axes) const { return options->mesh.degree(axes); }

  CommGroup group(AxisSet axes, const std::string& purpose = "") const;

  bool runs_stage(int stage) const;
};

/// Axes whose ranks own slices of one bucket.
inline constexpr AxisSet kShardAxes{MeshAxis::kDpShard, MeshAxis::kCp};

/// The buckets of all stages, with their State declared in `local`.
class Buckets {
 public:
  Buckets(const Graph& global, const std::vector<NodePlacement>& placements, StateTable& local,
          const RankContext& context);

  /// Another graph over the same parameters follows: forgets what was gathered.
  void begin_graph() {
    for (Bucket& b : buckets_) b.weights.clear();
  }

  /// The compute copy of a parameter as `stage` uses it; emits its bucket's gather if that is new.
  Value weight(Graph& g, StateId global, int stage);

  /// Where a gradient leaf of the global graph accumulates in `stage`, and how.
  struct Destination {
    Bucket* bucket = nullptr;
    size_t tensor = 0;
    Value into;  ///< its State, or the contribution before
    AccumulateMode mode = AccumulateMode::kAlways;
  };

  Destination destination(Graph& g, StateId global_gradient, int stage);

  /// `sum` is what the destination holds now; after the bucket's last contribution emits the
  /// reduction.
  void contributed(Graph& g, const Destination& to, Value sum);

  /// What happens to gradients once a step after all microbatches: sums over stages that share
  /// weights.
  void finish(Graph& g);

  std::vector<TensorPiece> pieces() const;
  std::vector<UpdateUnit> units(Graph& g) const;

 private:
  void find_tensors();
  void find_contributions();
  void index_tensors();
  std::vector<int> stages_on(const std::set<int>& stages, int pp) const;
  int pp_of(int stage) const;
  int stage_of(int32_t module) const;
  void lay_out(Bucket& bucket);
  void declare(Bucket& bucket);
  void declare_rings();
  void gather(Graph& g, Bucket& bucket);
  void reduce(Graph& g, Bucket& bucket);
  void sum_section(Graph& g, Bucket& bucket, TpGradient which, const CommGroup& group, When when);
  enum class Gathers : uint8_t { kOnce, kEachMicrobatch, kTwice };
  Gathers gathers(const Bucket& bucket) const;
  bool stores_full() const;
  double norm_weight(const Bucket& bucket, const BucketTensor& t) const;
  bool owns(const Bucket& bucket, const BucketTensor& t) const;
  StateId declare_state(const std::string& name, DType dtype, int64_t numel, StateKind kind,
                        const Bucket& bucket);
  StateId declare_window(const std::string& name, TensorType type, StateId parent, int64_t begin,
                         const Bucket& bucket);

  const Graph& global_;
  const std::vector<NodePlacement>& placements_;
  StateTable& local_;
  const RankContext& context_;
  DType compute_ = DType::kF32;
  DType gradient_dtype_ = DType::kF32;
  std::vector<Bucket> buckets_;  // in order of stage, then module
  std::map<std::pair<int32_t, int>, std::pair<size_t, size_t>> where_;  // (state, stage)
  std::map<int32_t, StateId> parameter_of_gradient_;
};

}  // namespace tokamak
