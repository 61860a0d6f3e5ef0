// Which pipeline stage owns the embedding, each block, the last norm and the head.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace tokamak {

/// The parallelism.* keys of the same names, and the model and ranks that they split.
struct SplitRequest {
  int num_layers = 1;
  int num_ranks = 1;  ///< pipeline_parallel_degree
  std::string schedule = "1F1B";
  std::optional<int> num_stages;  ///< of a schedule from a file
  std::optional<std::vector<std::vector<std::string>>> module_fqns_per_model_part;
  std::vector<std::string> split_points;
  std::optional<int> layers_per_stage;
  int first_stage_less_layers = 1;
  int last_stage_less_layers = 1;
};

struct StageSplit {
  int num_stages = 1;
  int embedding_stage = 0;  ///< with position embeddings
  std::vector<int> stage_of_layer;
  int norm_stage = 0;
  int head_stage = 0;

  bool operator==(const StageSplit&) const = default;
};

/// Takes parts, or else split points, as written (torchtitan's module names or Hugging Face's).
/// Without either it deals the layers evenly in model order over the stages, where the embedding
/// counts as `first_stage_less_layers` and norm with head as `last_stage_less_layers`; earlier
/// stages take the remainder. Only the first and the last stage may have no layers. The number of
/// stages is `num_stages`, or follows from `layers_per_stage` (at most this many per stage), or
/// from the schedule: its default, or one per rank where the layers are too few for two. One rank
/// is one stage, whatever the keys say.
///
/// Throws Error with the key, what was wanted and what was got. The schedule decides which rank has
/// which stage: PipelineSchedule::rank_of_stage.
StageSplit split_stages(const SplitRequest& request);

/// Returns a line for each stage: "stage 0 on rank 0: tok_embeddings, layers 0 to 7".
std::string split_text(const StageSplit& split, const std::vector<int>& rank_of_stage);

/// Returns the stage of each Label::module: embedding, layers, norm, head.
std::vector<int> stage_of_module(const StageSplit& split);

}  // namespace tokamak
