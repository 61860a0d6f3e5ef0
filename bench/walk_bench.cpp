// What the run loop costs a task: plans of many tasks whose kernels do nothing.
#include <benchmark/benchmark.h>

#include "tokamak/exec/executor.h"
#include "tokamak/ops/optimizer/accumulate.h"
#include "tokamak/plan/streams.h"

namespace tokamak {
namespace {

class NullBackend final : public Backend {
 public:
  Target target() const override { return {}; }

  std::unique_ptr<Allocation> allocate(int64_t bytes) override {
    return std::make_unique<Bytes>(bytes);
  }

  int64_t allocated_bytes() const override { return 0; }

  Kernel prepare(const OpRules&, const void*, const KernelTypes&, std::string_view) override {
    return [](const KernelArgs& args) { benchmark::DoNotOptimize(args.in.data()); };
  }

  void upload(std::byte*, const std::byte*, int64_t) override {}

  void clear(std::byte*, int64_t) override {}

  void download(std::byte*, const std::byte*, int64_t) override {}

 private:
  struct Bytes final : Allocation {
    explicit Bytes(int64_t bytes)
        : all(std::make_unique<std::byte[]>(static_cast<size_t>(bytes))), count(bytes) {}

    std::byte* data() const override { return all.get(); }

    int64_t bytes() const override { return count; }

    std::unique_ptr<std::byte[]> all;
    int64_t count;
  };
};

constexpr int kTasks = 1000;

// A chain of tasks; every `period`-th is of stream 1 and what follows `distance` later waits for
// it.
Plan chain(int period, int distance) {
  Plan plan;
  plan.arena_bytes[static_cast<size_t>(ArenaKind::kScratch)] = (kTasks + 1) * 64;
  Segment segment{.name = "chain", .runs = Segment::Runs::kPerMicrobatch};
  const auto op = std::make_shared<const Accumulate>();
  const auto at = [](int i) {
    return Operand{.offset = i * 64, .type = {.dtype = DType::kF32, .dims = {16}}, .strides = {1}};
  };
  for (int t = 0; t < kTasks; ++t) {
    const bool apart = period > 0 && t % period == 0;
    Task task{.rules = &kRules<Accumulate>,
              .op = op,
              .variant = &kCpuReference,
              .in = {at(t)},
              .out = {at(t + 1)},
              .accumulate = {std::nullopt},
              .stream = apart ? 1 : 0};
    if (apart && t > 0) task.waits = {t - 1};
    if (period > 0 && t % period == distance && t > distance) task.waits = {t - distance};
    segment.tasks.push_back(std::move(task));
  }
  plan.segments.push_back(std::move(segment));
  return plan;
}

// Args: every how many tasks one is of stream 1 (0 = none), how many tasks later it is waited for.
void walk(benchmark::State& state) {
  const Plan plan = chain(static_cast<int>(state.range(0)), static_cast<int>(state.range(1)));
  NullBackend backend;
  const Plan* plans[] = {&plan};
  const Memory memory(backend, plans);
  Executor executor(plan, memory);
  PhaseTimes phases{};
  executor.time_phases(&phases);
  for (auto _ : state) executor.run({.segment = 0});
  state.counters["s_per_task"] = benchmark::Counter(
      kTasks, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

BENCHMARK(walk)->Args({0, 0})->Args({100, 50})->Args({20, 10})->UseRealTime();

}  // namespace
}  // namespace tokamak
