// What the event loop of prices costs a work.
#include <benchmark/benchmark.h>

#include "tokamak/price/step/stream_loop.h"

namespace tokamak::price {
namespace {

// A segment: compute, every `period`-th work a collective beside it that a later one waits for.
RankWorks segment(int count, int period) {
  RankWorks works;
  int sent = -1;
  for (int w = 0; w < count; ++w) {
    const bool is_collective = w % period == 0;
    Work work{.seconds = 1.0 + w % 7,
              .category = is_collective ? Category::kExposedComm : Category::kGemm,
              .is_shared = true,
              .stream = is_collective ? 1 : 0};
    std::vector<int> after;
    if (is_collective && w > 0) after = {w - 1};
    if (w % period == period / 2 && sent >= 0) after = {sent};
    const int added = works.add(work, after);
    if (is_collective) sent = added;
  }
  return works;
}

void tasks_of_a_segment(benchmark::State& state) {
  constexpr int kCount = 1000;
  const RankWorks works = segment(kCount, static_cast<int>(state.range(0)));
  for (auto _ : state) {
    benchmark::DoNotOptimize(run_streams({&works, 1}, {}, {.compute = 1.1, .communication = 1.2}));
  }
  state.counters["events_per_s"] =
      benchmark::Counter(kCount, benchmark::Counter::kIsIterationInvariantRate);
}

// A pipeline of whole items, each followed by a message to the next rank, which waits for it.
void items_of_a_pipeline(benchmark::State& state) {
  const auto num_ranks = static_cast<size_t>(state.range(0));
  constexpr int kMicrobatches = 441;
  std::vector<RankWorks> ranks(num_ranks);
  std::vector<int> meetings(num_ranks * kMicrobatches, 2);
  for (size_t r = 0; r < num_ranks; ++r) {
    for (int m = 0; m < kMicrobatches; ++m) {
      const auto meeting = [&](size_t from) { return static_cast<int>(from * kMicrobatches) + m; };
      std::vector<int> after;
      if (r > 0) {
        after = {ranks[r].add({.seconds = 0.1,
                               .category = Category::kExposedComm,
                               .stream = 1,
                               .meeting = meeting(r - 1)},
                              {})};
      }
      const int made = ranks[r].add({.seconds = 3.0, .is_whole_item = true}, after);
      if (r + 1 < num_ranks) {
        ranks[r].add({.seconds = 0.1,
                      .category = Category::kExposedComm,
                      .stream = 2,
                      .meeting = meeting(r)},
                     {{made}});
      }
    }
  }
  size_t count = 0;
  for (const RankWorks& works : ranks) count += works.works.size();
  for (auto _ : state) benchmark::DoNotOptimize(run_streams(ranks, meetings, {}));
  state.counters["events_per_s"] =
      benchmark::Counter(static_cast<double>(count), benchmark::Counter::kIsIterationInvariantRate);
}

BENCHMARK(tasks_of_a_segment)->Arg(4)->Arg(20);
BENCHMARK(items_of_a_pipeline)->Arg(9)->Arg(64);

}  // namespace
}  // namespace tokamak::price
