// What is wrong with a Config (errors), and what only this build or world lacks (needs lines).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tokamak/config/config.h"
#include "tokamak/config/load.h"

namespace tokamak {

/// Beyond these nothing is planned: tokens of a microbatch, microbatches of a step.
inline constexpr int64_t kMostTokens = int64_t{1} << 26;
inline constexpr int64_t kMostMicrobatches = int64_t{1} << 16;

/// The mesh, outermost first, with no -1 left.
struct Degrees {
  int64_t pp = 1;
  int64_t dp_replicate = 1;
  int64_t dp_shard = 1;
  int64_t cp = 1;
  int64_t tp = 1;

  /// Ranks that read different data.
  int64_t dp() const { return dp_replicate * dp_shard; }

  int64_t world() const { return pp * dp_replicate * dp_shard * cp * tp; }
};

/// The product of the degrees, -1 counting as 1: the world size where no launcher tells it.
int64_t default_world_size(const Config& config);

/// The mesh over `world_size` ranks; throws Error naming the keys if the degrees do not multiply.
Degrees resolve_degrees(const ParallelismConfig& parallelism, int64_t world_size);

/// Sequences of one optimizer step over the whole mesh.
int64_t global_batch_size(const Config& config, const Degrees& degrees);

/// Throws Error, one line for each rule that keys break between them.
void validate(const Config& config, int64_t world_size);

/// Whether model.converters name float8 linear layers.
bool has_float8(const Config& config);

/// What a build can do; later features flip a bit.
struct Capabilities {
  bool data_parallel = false;
  bool tensor_parallel = false;
  bool context_parallel = false;
  bool pipeline_parallel = false;
  bool expert_parallel = false;
  bool float8 = false;
  bool mx = false;
  bool cpu_offload = false;
  bool bf16_master_weights = false;
  bool bf16_reduce = false;
  bool early_step_in_backward = false;
  bool memory_budget = false;
  bool profiling = false;
  bool memory_snapshot = false;
  bool wandb = false;
  bool fault_tolerance = false;
  std::string why_no_cuda = "built without CUDA";  ///< empty: there is a GPU
  /// Each family of models with its flavors; empty: not checked here.
  std::vector<std::pair<std::string, Strings>> models;
  Strings datasets = {"self", "c4", "c4_test", "c4_validation", "text", "tokens", "synthetic"};
};

/// One entry for every value that asks for what `capabilities` lacks, in the order of the keys;
/// files and memory are the caller's to check.
std::vector<Need> needs(const Config& config, const Capabilities& capabilities);

}  // namespace tokamak
