// The plans among which a search chooses: every way to split a step's batch over N devices.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokamak/config/config.h"
#include "tokamak/models/model_spec.h"
#include "tokamak/price/machine/machine.h"
#include "tokamak/run/mesh_options.h"

namespace tokamak {

/// Which pipeline ranks gather inputs of tensor-parallel matmuls again in the backward.
enum class GatherAgain : uint8_t { kNone, kAllButHead, kAll };

enum class RecomputeChoice : uint8_t { kNone, kSelectiveOps, kFull };

/// One plan. A pipeline gathers weights once a step, so zero1 is its only sharding.
struct SearchPoint {
  Degrees degrees;
  int64_t microbatch = 1;
  int64_t num_microbatches = 1;
  std::string schedule = "1F1B";  ///< of a pipeline
  int layers_per_stage = 0;       ///< 0 = the schedule's own number of stages
  int ends_weigh = 0;             ///< embedding and head count as this many layers
  RecomputeChoice recompute = RecomputeChoice::kNone;
  std::string context = "allgather";  ///< parallelism.context_parallel_rotate_method
  std::string sharding = "fsdp";      ///< parallelism.data_parallel_type
  std::string grad_store = "auto";    ///< training.grad_store
  price::Precision linear = price::Precision::kBf16;
  /// Keys that buy time for memory, where they are not as configured:
  /// activation_checkpoint.gather_again and gather_again_with_head,
  /// parallelism.pipeline_parallel_join_forwards, and LowPrecisionTrades.
  std::optional<GatherAgain> gather_again;
  std::optional<bool> joins_forwards;
  std::optional<bool> keeps_transposed;
  std::optional<bool> long_loss_chunks;
};

/// What bounds the space.
struct SearchBounds {
  int64_t num_gpus = 1;
  int64_t global_batch = 1;  ///< sequences
  int64_t seq_len = 1;
  int64_t largest_tp = 8;  ///< where the fabric is fast
  std::vector<price::Precision> precisions{price::Precision::kBf16};
};

/// Every pipeline that a search considers runs with these settings: a receive is launched only when
/// its value has been computed, so it slows no kernel (lower_schedule), and the weights of a step
/// are gathered during the first forwards.
inline constexpr int kSearchedReceivesAhead = 0;
inline constexpr bool kSearchedOverlapGathers = true;

/// Returns all points in a fixed order. Context parallelism uses all-gather in all of them.
std::vector<SearchPoint> search_points(const ModelSpec& model, const SearchBounds& bounds);

/// Returns the keys of a configuration that the search chooses, besides the precision of matmuls.
std::span<const std::string_view> chosen_keys();

/// Returns the configuration that runs a point: `base` with other values of chosen_keys().
Config config_of(const SearchPoint& point, const Config& base, int64_t global_batch);

/// Returns text such as "fsdp, gradients sharded".
std::string sharding_text(const SearchPoint& point);

/// Returns text such as "Interleaved1F1B of 4 stages a rank, 16 x 1 sequences".
std::string schedule_text(const SearchPoint& point, int num_layers);

}  // namespace tokamak
