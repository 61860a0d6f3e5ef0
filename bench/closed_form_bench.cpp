// Closed forms a second on one core: the pipeline and the flat mesh of a search's inner loop.
#include <benchmark/benchmark.h>

#include "tokamak/price/closed_form.h"

namespace tokamak::price {
namespace {

StageCosts costs() {
  StageCosts c;
  c.forward_s = {.layer = 9e-3, .embedding = 1e-4, .head = 6e-3};
  c.backward_s = {.layer = 18e-3, .embedding = 2e-4, .head = 6e-3};
  c.first_backward_s = c.backward_s;
  c.saved = {.layer = 9e8};
  c.scratch = {.base = 6e8};
  c.elements = {.layer = 4e8, .embedding = 2.6e8, .head = 2.6e8};
  c.hop_bytes = 3.3e7;
  c.update_s = 1e-11;
  return c;
}

// 126 layers on so many ranks of so many stages.
void BM_Pipeline(benchmark::State& state) {
  const auto p = static_cast<int>(state.range(0));
  const auto v = static_cast<int>(state.range(1));
  const Machine machine = load_machine("h100");
  std::vector<StageModules> stages(static_cast<size_t>(p * v));
  for (int l = 0; l < 126; ++l) ++stages[static_cast<size_t>(l % (p * v))].layers;
  stages.front().has_embedding = true;
  stages.back().has_head = true;
  const PipelineShape shape =
      pipeline_shape(v == 1 ? "1F1B" : "Interleaved1F1B", p, std::move(stages), 64);
  const StageCosts c = costs();
  const DataSpread spread{.owners = 64,
                          .shard = strided_layout(64, 8, machine),
                          .replicas = 2,
                          .replica = strided_layout(2, 512, machine),
                          .hop_s = 1e-4};
  for (auto _ : state) benchmark::DoNotOptimize(closed_form(c, shape, spread, 0.0, machine));
  state.SetItemsProcessed(state.iterations());
}

BENCHMARK(BM_Pipeline)->Args({8, 1})->Args({16, 1})->Args({16, 4})->Args({16, 8});

void BM_Flat(benchmark::State& state) {
  const Machine machine = load_machine("h100");
  const FlatCosts c{.held = {.base = 1e9, .layer = 1e8}, .middle_s = {.base = 1e-2, .layer = 1e-3}};
  for (auto _ : state) benchmark::DoNotOptimize(closed_form(c, 126, 64, machine));
  state.SetItemsProcessed(state.iterations());
}

BENCHMARK(BM_Flat);

}  // namespace
}  // namespace tokamak::price
