// How weights lie in flat buckets: which share one, in which order, and which slice a rank owns.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "tokamak/graph/graph.h"
#include "tokamak/parallel/rank_context.h"

namespace tokamak {

/// How the gradient of a tensor is spread over tp, which decides where in the bucket it lies.
enum class TpGradient : uint8_t {
  kAlone,     ///< the tensor is cut and no other rank has this part
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
  bool is_tied_copy = false;      ///< an earlier stage on another rank owns it
  bool is_low_precision = false;  ///< matmuls read it in low precision and nothing reads its values
  int64_t begin = 0;              ///< in the bucket
  StateId grad_window;
  Value grad_sum;           ///< the contributions so far
  std::vector<int> stages;  ///< stages on this bucket's rank that use it
};

/// The class of a bucket's tensors. A module has one bucket for each class of its tensors.
struct BucketClass {
  AxisSet owners = kShardAxes;    ///< the ranks along these axes own a slice each
  bool is_low_precision = false;  ///< gathered in low precision, apart from other tensors
};

struct Bucket {
  std::string name;
  BucketClass traits;
  int32_t block = -1;
  int32_t module = 0;
  int stage = 0;
  int32_t first_state = -1;    ///< of its tensors, in the global graph
  bool is_here = true;         ///< this rank runs the stage
  std::vector<int> tie_ranks;  ///< pp coordinates that hold a copy, if stages share the weight
  std::vector<BucketTensor> tensors;
  int64_t numel = 0;  ///< padded: a multiple of 128 for each owner
  int64_t slice = 0;  ///< what one owner has
  StateId master;
  DType moment_dtype = DType::kF32;
  std::vector<StateId> moments;  ///< in the order of kMomentNames
  StateId full_copy;      ///< numel: the compute copy kept from step to step; invalid if none is
  StateId copy;           ///< this rank's slice of it, which the update writes
  StateId full_gradient;  ///< numel; a window of a ring where gradients are stored in slices
  StateId gradient;       ///< slice
  bool has_low_precision = false;  ///< a tensor of it is
  int contributions_left = 0;
  int32_t first_contribution = 0;  ///< nodes of the global graph
  int32_t last_contribution = 0;   ///< to any bucket of the module
  std::vector<Value> weights;      ///< compute copies by tensor, once gathered
};

/// Tensors and slices of a bucket begin at multiples of this many elements.
inline constexpr int64_t kBucketAlignment = 128;

/// Returns the buckets of the module that `bucket` is one of. They follow each other in `buckets`,
/// those of tensors in low precision last. A weight that stages share is a module of its own.
std::span<Bucket> module_buckets(std::vector<Bucket>& buckets, const Bucket& bucket);

struct BucketLayout {
  std::vector<Bucket> buckets;  ///< in order of stage, then module; without State
  DType compute = DType::kF32;
  DType gradient = DType::kF32;
  /// Maps (parameter, stage) to (bucket, tensor in it).
  std::map<std::pair<int32_t, int>, std::pair<size_t, size_t>> where;
  std::map<int32_t, StateId> parameter_of_gradient;  ///< by gradient State
};

/// Makes from the placed training graph a bucket for each (stage, module), with norm and head of
/// one stage together, and one for each weight that stages share, on each of their ranks. If ranks
/// gather in low precision, a module's tensors in it have a bucket of their own, after that of the
/// others.
BucketLayout lay_out_buckets(const Graph& global, const std::vector<NodePlacement>& placements,
                             const RankContext& context);

}  // namespace tokamak
