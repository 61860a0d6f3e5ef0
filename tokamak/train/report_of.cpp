#include "tokamak/train/report_of.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tokamak/train/flops.h"

namespace tokamak {
namespace {

std::string mesh_text(const Degrees& degrees) {
  const Mesh mesh = mesh_of(degrees);
  std::vector<std::string> parts;
  for (size_t a = 0; a < kNumMeshAxes; ++a) {
    const auto axis = static_cast<MeshAxis>(a);
    if (mesh.degree(axis) > 1)
      parts.push_back(fmt::format("{} {}", name_of(axis), mesh.degree(axis)));
  }
  return parts.empty() ? "one rank" : fmt::format("{}", fmt::join(parts, " x "));
}

std::string schedule_text(const PriceRequest& request, const PricedRun& run) {
  const Config& config = request.config;
  const std::string name =
      request.degrees.pp > 1 ? config.parallelism.pipeline_parallel_schedule + ", " : std::string();
  return fmt::format("{}{} microbatch{} of {} x {}, recompute {}", name, run.batch.num_microbatches,
                     run.batch.num_microbatches == 1 ? "" : "es", run.batch.microbatch,
                     config.training.seq_len, config.activation_checkpoint.mode);
}

}  // namespace

price::Report report_of(const PriceRequest& request, const PricedRun& run, double tokens) {
  const PlannedRun& fullest = run.fullest();
  const int64_t seq_len = request.config.training.seq_len;
  const FlopsShape shape = flops_shape(run.model, seq_len);
  price::Report report{
      .model = fmt::format("{} {}", run.model.name, run.model.flavor),
      .machine = request.machine.name,
      .num_devices = request.degrees.world(),
      .mesh = mesh_text(request.degrees),
      .schedule = schedule_text(request, run),
      .precision = request.linear,
      .device_graphs = run.options.device_graphs,
      .step = run.step,
      .tokens_per_step = run.tokens_per_step,
      .flops = {{"torchtitan", flops_per_token(shape)},
                {"Megatron-LM", megatron_flops_per_token(run.model, seq_len)},
                {"NeMo 24.09", nemo_flops_per_token(run.model, seq_len)},
                {"causal", causal_flops_per_token(shape)}},
      .peak_flops = request.machine.device.peak_flops[static_cast<size_t>(request.linear)],
      .memory_rank = fullest.rank(),
      .memory = fullest.plan().memory,
      .memory_limit_bytes = run.memory_limit_bytes,
      .tokens = tokens};
  int64_t listed = 0;
  for (const MemoryRow& row : report.memory) listed += row.bytes;
  if (fullest.peak_bytes() > listed) {
    report.memory.push_back(
        {.owner = "validation beyond training", .bytes = fullest.peak_bytes() - listed});
  }
  if (!report.fits()) report.memory_advice = memory_advice(run, request.config, request.degrees);
  report.reliability =
      price::reliability_of(static_cast<double>(shape.parameters),
                            static_cast<int>(report.num_devices), run.step, request.machine);
  return report;
}

}  // namespace tokamak
