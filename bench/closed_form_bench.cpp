// Closed forms a second on one core: the pipeline and the flat mesh of a search's inner loop.
#include <benchmark/benchmark.h>

#include "tokamak/price/step/closed_form.h"

namespace tokamak::price {
namespace {

StageCosts costs() {
  StageCosts c;
  const StageSum forward{.layer = 9e-3, .embedding = 1e-4, .head = 6e-3};
  const StageSum backward{.layer = 18e-3, .embedding = 2e-4, .head = 6e-3};
  const StageSum collectives{.layer = 3e-3};
  c.places = {
      {.fast = {.forward = {forward, forward, collectives},
                .backward = {backward, backward, collectives},
                .first_backward = {backward, backward, collectives},
                .stretches = std::vector<Stretch>(8, {.kernels = 0.125, .communication = 0.125})},
       .slow = {}}};
  c.held = {{{PipelineItemKind::kRecvForward, PipelineItemKind::kBackwardInput}, {.base = 3.3e7}},
            {{PipelineItemKind::kForward, PipelineItemKind::kBackwardInput}, {.layer = 9e8}},
            {{PipelineItemKind::kForward, PipelineItemKind::kSendForward}, {.base = 3.3e7}},
            {{PipelineItemKind::kRecvBackward, PipelineItemKind::kBackwardInput}, {.base = 3.3e7}},
            {{PipelineItemKind::kBackwardInput, PipelineItemKind::kSendBackward}, {.base = 3.3e7}}};
  for (auto& order : c.held_order) order = {0, 1, 2, 3, 4};
  c.scratch = {.base = 6e8};
  c.elements = {.layer = 4e8, .embedding = 2.6e8, .head = 2.6e8};
  c.hop_bytes = 3.3e7;
  c.update_s = 1e-11;
  return c;
}

PipelineRanks ranks_of(const PipelineShape& shape) {
  const auto p = static_cast<size_t>(shape.num_ranks);
  return {.hops_s = std::vector<double>(2 * p, 1e-4), .places = std::vector<int>(p, 0)};
}

// 126 layers on so many ranks of so many stages, 64 microbatches.
PipelineShape shape_of(const benchmark::State& state) {
  const auto p = static_cast<int>(state.range(0));
  const auto v = static_cast<int>(state.range(1));
  std::vector<StageModules> stages(static_cast<size_t>(p * v));
  for (int l = 0; l < 126; ++l) ++stages[static_cast<size_t>(l % (p * v))].layers;
  stages.front().has_embedding = true;
  stages.back().has_head = true;
  return pipeline_outline(v == 1 ? "1F1B" : "Interleaved1F1B", p, std::move(stages), 64);
}

void BM_Pipeline(benchmark::State& state) {  // NOLINT(readability-identifier-naming)
  const Machine machine = load_machine("h100");
  PipelineShape shape = shape_of(state);
  add_schedule(shape);
  const StageCosts c = costs();
  const DataSpread spread{.owners = 64,
                          .replicas = 2,
                          .groups = {{.shard = strided_layout(64, 8, machine),
                                      .replica = strided_layout(2, 512, machine)}},
                          .hop_s = 1e-4};
  const PipelineUse use = pipeline_use(c, shape, ranks_of(shape), machine);
  for (auto _ : state) benchmark::DoNotOptimize(closed_form(c, shape, use, spread, machine));
  state.SetItemsProcessed(state.iterations());
}

// What is kept for all data-parallel meshes of a pipeline.
void BM_PipelineUse(benchmark::State& state) {  // NOLINT(readability-identifier-naming)
  const Machine machine = load_machine("h100");
  PipelineShape shape = shape_of(state);
  add_schedule(shape);
  const StageCosts c = costs();
  const PipelineRanks ranks = ranks_of(shape);
  for (auto _ : state) benchmark::DoNotOptimize(pipeline_use(c, shape, ranks, machine));
  state.SetItemsProcessed(state.iterations());
}

// What is kept for all costs.
void BM_PipelineSchedule(benchmark::State& state) {  // NOLINT(readability-identifier-naming)
  for (auto _ : state) {
    PipelineShape shape = shape_of(state);
    add_schedule(shape);
    benchmark::DoNotOptimize(shape);
  }
  state.SetItemsProcessed(state.iterations());
}

BENCHMARK(BM_Pipeline)->Args({8, 1})->Args({16, 1})->Args({16, 4})->Args({16, 8});
BENCHMARK(BM_PipelineUse)->Args({8, 1})->Args({16, 1})->Args({16, 4})->Args({16, 8});
BENCHMARK(BM_PipelineSchedule)->Args({8, 1})->Args({16, 1})->Args({16, 4})->Args({16, 8});

void BM_Flat(benchmark::State& state) {  // NOLINT(readability-identifier-naming)
  const FlatCosts c{.held = {.base = 1e9, .layer = 1e8}, .step_s = {.base = 1.0, .layer = 0.1}};
  for (auto _ : state) benchmark::DoNotOptimize(closed_form(c, 126));
  state.SetItemsProcessed(state.iterations());
}

BENCHMARK(BM_Flat);

}  // namespace
}  // namespace tokamak::price
