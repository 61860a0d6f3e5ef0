#include "tokamak/pipeline/stage_split.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "tokamak/core/error.h"

namespace tokamak {
namespace {

using Ints = std::vector<int>;

// Layers of each stage.
Ints layers_of(const SplitRequest& request) {
  const StageSplit split = split_stages(request);
  Ints layers(split.num_stages, 0);
  for (const int stage : split.stage_of_layer) ++layers.at(stage);
  EXPECT_TRUE(std::is_sorted(split.stage_of_layer.begin(), split.stage_of_layer.end()));
  EXPECT_EQ(split.stage_of_layer.size(), static_cast<size_t>(request.num_layers));
  return layers;
}

std::string error_of(const SplitRequest& request) {
  try {
    split_stages(request);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(SplitStages, DealsEvenlyWithEmbeddingAndHeadAsLayers) {
  EXPECT_EQ(layers_of({.num_layers = 32, .num_ranks = 4}), (Ints{8, 9, 8, 7}));
  EXPECT_EQ(layers_of({.num_layers = 6, .num_ranks = 4}), (Ints{1, 2, 2, 1}));
  EXPECT_EQ(layers_of({.num_layers = 6, .num_ranks = 2, .schedule = "Interleaved1F1B"}),
            (Ints{1, 2, 2, 1}));
  EXPECT_EQ(layers_of({.num_layers = 126, .num_ranks = 16, .schedule = "Interleaved1F1B"}).at(31),
            3);
  EXPECT_EQ(layers_of({.num_layers = 3,
                       .num_ranks = 2,
                       .first_stage_less_layers = 2,
                       .last_stage_less_layers = 2}),
            (Ints{2, 1}));
  EXPECT_EQ(layers_of({.num_layers = 8,
                       .num_ranks = 4,
                       .first_stage_less_layers = 0,
                       .last_stage_less_layers = 0}),
            (Ints{2, 2, 2, 2}));
}

TEST(SplitStages, LeavesEndsWithoutLayers) {
  EXPECT_EQ(layers_of({.num_layers = 6, .num_ranks = 8}), (Ints{0, 1, 1, 1, 1, 1, 1, 0}));
  EXPECT_EQ(layers_of({.num_layers = 7,
                       .num_ranks = 8,
                       .first_stage_less_layers = 0,
                       .last_stage_less_layers = 0}),
            (Ints{1, 1, 1, 1, 1, 1, 1, 0}));
  // A head as heavy as five layers.
  EXPECT_EQ(layers_of({.num_layers = 9, .num_ranks = 4, .last_stage_less_layers = 5}),
            (Ints{3, 3, 3, 0}));
  EXPECT_EQ(layers_of({.num_layers = 4, .num_ranks = 2, .first_stage_less_layers = 9}),
            (Ints{0, 4}));
  for (int stages = 2; stages <= 12; ++stages) {
    for (int layers = std::max(1, stages - 2); layers < 30; ++layers) {
      for (int first = 0; first < 5; ++first) {
        for (int last = 0; last < 5; ++last) {
          const Ints split = layers_of({.num_layers = layers,
                                        .num_ranks = stages,
                                        .first_stage_less_layers = first,
                                        .last_stage_less_layers = last});
          for (int s = 1; s + 1 < stages; ++s)
            ASSERT_GE(split[s], 1) << stages << " " << layers << " " << first << " " << last;
        }
      }
    }
  }
}

TEST(SplitStages, TakesFewerStagesWhereLayersAreFew) {
  EXPECT_EQ(layers_of({.num_layers = 5, .num_ranks = 4, .schedule = "Interleaved1F1B"}),
            (Ints{1, 2, 2, 0}));
  EXPECT_EQ(error_of({.num_layers = 5, .num_ranks = 4, .schedule = "DualPipeV"}),
            "parallelism.pipeline_parallel_degree = 4 with 2 stages a rank makes 8 stages: wanted "
            "at least 6 layers (one for each stage but the first and the last), got 5, which is "
            "enough for 7 stages");
}

TEST(SplitStages, ByLayersPerStage) {
  EXPECT_EQ(
      layers_of(
          {.num_layers = 14, .num_ranks = 2, .schedule = "Interleaved1F1B", .layers_per_stage = 4}),
      (Ints{3, 4, 4, 3}));
  // 5 stages would do; 6 is the next number that two ranks can share.
  EXPECT_EQ(
      layers_of({.num_layers = 18, .num_ranks = 2, .schedule = "LoopedBFS", .layers_per_stage = 4}),
      (Ints{3, 4, 3, 3, 3, 2}));
  EXPECT_EQ(error_of({.num_layers = 32, .num_ranks = 4, .layers_per_stage = 8}),
            "parallelism.pipeline_parallel_layers_per_stage = 8: 32 layers + 1 + 1 for embedding "
            "and head make 5 stages; 1F1B on 4 ranks wants 4: 9 a stage would do");
  EXPECT_EQ(layers_of({.num_layers = 32, .num_ranks = 4, .layers_per_stage = 9}),
            (Ints{8, 9, 8, 7}));
}

TEST(SplitStages, ByModuleNames) {
  SplitRequest request{.num_layers = 3, .num_ranks = 2};
  request.module_fqns_per_model_part = {{"tok_embeddings", "layers.0"},
                                        {"layers.1", "layers.2", "norm", "output"}};
  const StageSplit wanted{
      .num_stages = 2, .stage_of_layer = {0, 1, 1}, .norm_stage = 1, .head_stage = 1};
  EXPECT_EQ(split_stages(request), wanted);
  request.module_fqns_per_model_part = {
      {"model.embed_tokens", "model.layers.0", "model.rotary_emb"},
      {"model.layers.1", "model.layers.2", "model.norm", "lm_head", "model.rotary_emb"}};
  EXPECT_EQ(split_stages(request), wanted);
  request.module_fqns_per_model_part = {
      {"transformer.wte", "transformer.wpe", "transformer.h.0"},
      {"transformer.h.1", "transformer.h.2", "transformer.ln_f", "lm_head"}};
  EXPECT_EQ(split_stages(request), wanted);
  request.module_fqns_per_model_part = {
      {"tok_embeddings"}, {"layers.0", "layers.1", "layers.2"}, {"norm"}, {"output"}};
  EXPECT_EQ(
      split_stages(request),
      (StageSplit{.num_stages = 4, .stage_of_layer = {1, 1, 1}, .norm_stage = 2, .head_stage = 3}));
}

TEST(SplitStages, ByPoints) {
  EXPECT_EQ(
      split_stages(
          {.num_layers = 4, .num_ranks = 2, .split_points = {"layers.1", "layers.2", "output"}}),
      (StageSplit{
          .num_stages = 4, .stage_of_layer = {0, 1, 2, 2}, .norm_stage = 2, .head_stage = 3}));
  EXPECT_EQ(error_of({.num_layers = 4, .num_ranks = 2, .split_points = {"layers.2", "layers.1"}}),
            "parallelism.pipeline_parallel_split_points: wanted modules after layers.2 in model "
            "order, got layers.1");
  EXPECT_EQ(error_of({.num_layers = 4, .num_ranks = 2, .split_points = {"layers.1", "layers.2"}}),
            "parallelism.pipeline_parallel_split_points: wanted a multiple of "
            "parallelism.pipeline_parallel_degree = 2 stages, got 3");
}

TEST(SplitStages, NamesWhatPartsLack) {
  const auto error = [](std::vector<std::vector<std::string>> parts) {
    SplitRequest request{.num_layers = 2, .num_ranks = 2};
    request.module_fqns_per_model_part = std::move(parts);
    return error_of(request);
  };
  const std::string key = "parallelism.module_fqns_per_model_part: ";
  EXPECT_EQ(error({{"tok_embeddings", "layers.0"}, {"norm", "output"}}),
            key + "no part has layers.1");
  EXPECT_EQ(error({{"tok_embeddings", "layers.0", "layers.1"}, {"layers.1", "norm", "output"}}),
            key + "layers.1 is in part 0 and again in part 1");
  EXPECT_EQ(error({{"tok_embeddings", "layers.1"}, {"layers.0", "norm", "output"}}),
            key + "wanted parts in model order, got layers.0 in part 1 and layers.1 in part 0");
  EXPECT_EQ(error({{"tok_embeddings", "layers.0", "layers.1", "norm", "output"}, {}}),
            key + "part 1 has no module; wanted at least one");
  EXPECT_EQ(error({{"tok_embeddings", "layers.2"}, {"norm", "output"}}),
            key +
                "wanted tok_embeddings, layers.0 to layers.1, norm, output (or their Hugging "
                "Face names), got layers.2");
}

TEST(SplitStages, SaysWhatEachStageHolds) {
  const StageSplit split =
      split_stages({.num_layers = 3, .num_ranks = 2, .schedule = "InterleavedZeroBubble"});
  EXPECT_EQ(split_text(split, {0, 1, 0, 1}),
            "stage 0 on rank 0: tok_embeddings, layer 0\n"
            "stage 1 on rank 1: layer 1\n"
            "stage 2 on rank 0: layer 2\n"
            "stage 3 on rank 1: norm, output\n");
  EXPECT_EQ(split_text(split_stages({.num_layers = 3}), {0}),
            "stage 0 on rank 0: tok_embeddings, layers 0 to 2, norm, output\n");
}

TEST(SplitStages, OneRankIsOneStage) {
  EXPECT_EQ(layers_of({.num_layers = 4, .schedule = "Interleaved1F1B", .layers_per_stage = 1}),
            (Ints{4}));
}

TEST(SplitStages, FollowsAFilesStages) {
  EXPECT_EQ(layers_of({.num_layers = 4, .num_ranks = 2, .num_stages = 6}),
            (Ints{0, 1, 1, 1, 1, 0}));
  EXPECT_EQ(layers_of({.num_layers = 4,
                       .num_ranks = 2,
                       .num_stages = 3,
                       .split_points = {"layers.1", "layers.3"}}),
            (Ints{1, 2, 1}));
  EXPECT_NE(
      error_of({.num_layers = 4, .num_ranks = 2, .num_stages = 4, .split_points = {"layers.1"}}),
      "");
}

}  // namespace
}  // namespace tokamak
