// Steps of pipelines that a search estimates a second, on one core.
#include <benchmark/benchmark.h>

#include "tokamak/price/step/step_estimate.h"

namespace tokamak::price {
namespace {

StageCosts costs() {
  const StageSum forward{.layer = 9e-3, .embedding = 1e-4, .head = 6e-3};
  const StageSum backward{.layer = 18e-3, .embedding = 2e-4, .head = 6e-3};
  const StageSum collectives{.layer = 3e-3};
  StageCosts c{
      .places = {{.forward = {forward, collectives}, .backward = {backward, collectives}}}};
  c.elements = {.layer = 4e8, .embedding = 2.6e8, .head = 2.6e8};
  return c;
}

// 126 layers on so many ranks of so many stages, 64 microbatches.
PipelineShape shape_of(const benchmark::State& state) {
  const auto p = static_cast<int>(state.range(0));
  const auto v = static_cast<int>(state.range(1));
  std::vector<StageModules> stages(static_cast<size_t>(p * v));
  for (int l = 0; l < 126; ++l) ++stages[static_cast<size_t>(l % (p * v))].layers;
  stages.front().has_embedding = true;
  stages.back().has_head = true;
  PipelineShape shape =
      pipeline_outline(v == 1 ? "1F1B" : "Interleaved1F1B", p, std::move(stages), 64);
  add_items(shape);
  return shape;
}

void BM_Pipeline(benchmark::State& state) {  // NOLINT(readability-identifier-naming)
  const Machine machine = load_machine("h100");
  const PipelineShape shape = shape_of(state);
  const StageCosts c = costs();
  const auto p = static_cast<size_t>(shape.num_ranks);
  const DataSpread spread{.owners = 64,
                          .replicas = 2,
                          .groups = {{.shard = strided_layout(64, 8, machine),
                                      .replica = strided_layout(2, 512, machine)}},
                          .places = std::vector<int>(p, 0),
                          .hops_s = std::vector<double>(p, 1e-4)};
  for (auto _ : state) benchmark::DoNotOptimize(estimate_pipeline(c, shape, spread, machine));
  state.SetItemsProcessed(state.iterations());
}

BENCHMARK(BM_Pipeline)->Args({8, 1})->Args({16, 1})->Args({16, 4})->Args({16, 8});

}  // namespace
}  // namespace tokamak::price
