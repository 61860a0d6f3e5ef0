// From the configuration to the mesh: degrees, sharding, and how rows and microbatches are dealt.
#pragma once

#include <cstdint>
#include <string>

#include "tokamak/config/check.h"
#include "tokamak/config/config.h"
#include "tokamak/parallel/distribute.h"
#include "tokamak/pipeline/stage_split.h"

namespace tokamak {

/// One rank of a mesh.
struct MeshPlace {
  Degrees degrees;
  int rank = 0;
};

Mesh mesh_of(const Degrees& degrees);

/// "pp 16 x dp_replicate 4 x dp_shard 32 x tp 8", or "one rank".
std::string mesh_text(const Degrees& degrees);

/// Returns what `parallelism` and `training` say about one rank's graph, without the pipeline
/// schedule, which needs the model: see pipeline_plan(). As in torchtitan, replicas that shard
/// nothing are DDP.
DistributeOptions distribute_options(const Config& config, const Degrees& degrees, int rank);

/// How the sequences of one optimizer step are dealt. With a pipeline, a rank's
/// training.local_batch_size is cut into microbatches of pipeline_parallel_microbatch_size; all
/// microbatches of a step, accumulated ones too, run in one schedule.
struct BatchSizes {
  int64_t global = 1;            ///< of one step over the whole mesh
  int64_t microbatch = 1;        ///< of one rank and microbatch
  int64_t num_microbatches = 1;  ///< of one rank and step
  int64_t dp = 1;                ///< ranks that read different data
};

/// Does the same from the keys parallelism.data_parallel_type and training.grad_store.
bool keeps_full_gradients(const std::string& data_parallel_type, const std::string& grad_store,
                          const Degrees& degrees, int64_t num_microbatches);

/// REQUIRES: validate() passed.
BatchSizes batch_sizes(const Config& config, const Degrees& degrees);

/// Which stage owns which modules, which rank runs it and when.
struct PipelinePlan {
  StageSplit split;
  PipelineSchedule schedule;
};

/// Returns what `parallelism.pipeline_parallel_*` and module_fqns_per_model_part ask for. A
/// schedule from a CSV file, GPipe and LoopedBFS run again for the microbatches of accumulation.
/// Throws Error with the key.
PipelinePlan pipeline_plan(const Config& config, const Degrees& degrees, int64_t num_layers,
                           int64_t num_microbatches);

}  // namespace tokamak
