// From the global training graph to the graph of one rank (docs/parallelism.md).
#pragma once

#include <memory>
#include <vector>

#include "tokamak/graph/graph.h"
#include "tokamak/graph/mesh.h"
#include "tokamak/graph/schedule.h"
#include "tokamak/parallel/tensor_piece.h"

namespace tokamak {

/// When compute copies of weights are thrown away after the forward and gathered again.
enum class Reshard : uint8_t { kDefault, kAlways, kNever };

/// What the optimizer shards: FSDP (ZeRO-3) shards parameters, gradients and moments.
enum class Sharding : uint8_t { kDdp, kZero1, kZero2, kFsdp };

/// Where gradients of several microbatches are summed.
enum class GradStore : uint8_t { kAuto, kFull, kSharded };

struct DistributeOptions {
  Mesh mesh;
  int rank = 0;
  Sharding sharding = Sharding::kFsdp;
  Reshard reshard = Reshard::kDefault;
  GradStore grad_store = GradStore::kAuto;
  bool loss_parallel = true;
  bool async_tp = false;
  ContextMethod context = ContextMethod::kAllGather;
  /// Stage of each block's label is set when the graph is built; which rank runs it is here.
  PipelineSchedule pipeline;
};

}  // namespace tokamak
