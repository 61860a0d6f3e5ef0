#include "tokamak/train/bench/benchmark.h"

#include <algorithm>
#include <chrono>

#include "tokamak/core/random.h"
#include "tokamak/core/timing.h"
#include "tokamak/train/state/initialize.h"
#include "tokamak/train/step_plans.h"

namespace tokamak {
namespace {

using Clock = std::chrono::steady_clock;

void write_random_inputs(const StateAccess& access, const StepState& s, const ModelSpec& config) {
  const auto& type = access.states()[s.tokens].type;
  std::vector<int32_t> tokens(type.numel());
  std::vector<int32_t> positions(tokens.size());
  const int64_t S = type.dims[1];
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] =
        static_cast<int32_t>(random_u32(0, 1, i) % static_cast<uint64_t>(config.vocab_size));
    positions[i] = static_cast<int32_t>(static_cast<int64_t>(i) % S);
  }
  access.write(s.tokens, std::span<const int32_t>(tokens));
  access.write(s.labels, std::span<const int32_t>(tokens));
  access.write(s.positions, std::span<const int32_t>(positions));
  const float scale[] = {1.0F / static_cast<float>(tokens.size())};
  access.write(s.loss_scale, std::span<const float>(scale));
  const double scalars[] = {1e-4, 0.1, 0.05, 1.0};
  access.write(s.scalars, std::span<const double>(scalars));
}

}  // namespace

double StepBenchmark::median_step_s() const {
  return median(step_s);
}

double StepBenchmark::median_host_s() const {
  return median(host_s);
}

StepBenchmark benchmark_step(const PlannedRun& run, int64_t warmup, int64_t steps, Backend& backend,
                             const DeviceRates& rates, OpGrouping grouping) {
  const Plan* plans[] = {&run.plan()};
  const Memory memory(backend, plans);
  const StateAccess access(memory, run.states(), run.layout());
  StepPlans choices(run, memory, access, {}, nullptr);
  choices.warm_up(1);
  initialize(access, run.pieces(), 0);
  make_copies(run, memory);
  write_random_inputs(access, run.step(), run.config());
  StepBenchmark result{.tokens_per_step = run.shape().training.batch * run.shape().training.seq_len,
                       .peak_bytes = run.plan().peak_bytes()};
  const auto step = [&] {
    const auto start = Clock::now();
    const auto since_start = [&] { return seconds_since(start); };
    auto& [plan, executor, unused] = choices.choose();
    for (const ScheduleItem& item : plan.schedule(1)) executor.run(item);
    result.host_s.push_back(since_start());
    executor.settle();
    result.step_s.push_back(since_start());
  };
  for (int64_t i = 0; i < warmup; ++i) step();
  result.host_s.clear();
  result.step_s.clear();
  for (int64_t i = 0; i < steps; ++i) step();
  std::vector<TaskSpan> spans;
  auto& [plan, executor, unused] = choices.choose();
  executor.trace(&spans);
  for (const ScheduleItem& item : plan.schedule(1)) executor.run(item);
  executor.settle();
  result.ops = time_by_op(spans, rates, grouping);
  result.summary = summarize(spans, rates, run.plan().groups);
  for (const OpTime& op : result.ops) result.flops_per_step += op.flops;
  return result;
}

}  // namespace tokamak
