#include "tokamak/price/run/stage_probe.h"

#include <algorithm>
#include <memory>

#include "tokamak/core/error.h"
#include "tokamak/parallel/buckets/bucket_layout.h"
#include "tokamak/price/run/probe_stages.h"
#include "tokamak/price/run/slowest_place.h"
#include "tokamak/price/step/step_price.h"
#include "tokamak/run/planned_ranks.h"

namespace tokamak {
namespace {

using price::FlatCosts;
using price::LayerLine;
using price::StageCosts;
using price::StageSum;

Depths depths_of(const RecomputePolicy& policy) {
  const bool has_period = policy.mode == RecomputePolicy::Mode::kSelectiveLayers;
  const int period = has_period ? policy.every_nth_block : 1;
  const int few = std::max(2, period) / period * period;
  return {.few = few, .many = 2 * few};
}

// Alone, gathers ahead and reductions behind make the first layers odd ones.
Depths flat_depths_of(const RecomputePolicy& policy) {
  const Depths depths = depths_of(policy);
  return {.few = depths.many, .many = depths.many + std::max(depths.few, 2)};
}

// Temporaries are as large in any depth, but for gaps that packing leaves by chance.
constexpr double kPackingShare = 1.05;

// One microbatch through all stages of two ranks and back.
PipelineSchedule there_and_back(bool split) {
  PipelineSchedule s{.name = "probe", .num_ranks = 2};
  s.actions.resize(2);
  for (int stage = 0; stage < kNumProbeStages; ++stage) {
    s.rank_of_stage.push_back(stage % 2);
    s.actions[stage % 2].push_back({PipelineOp::kForward, stage, 0});
  }
  for (int stage = kNumProbeStages - 1; stage >= 0; --stage) {
    auto& actions = s.actions[stage % 2];
    if (!split) {
      actions.push_back({PipelineOp::kBackward, stage, 0});
    } else {
      actions.push_back({PipelineOp::kBackwardInput, stage, 0});
      actions.push_back({PipelineOp::kBackwardWeight, stage, 0});
    }
  }
  return s;
}

// To what this plan needs too.
void raise_scratch(const Plan& plan, const Depths& depths, StageCosts& costs) {
  ByStage scratch(depths);
  for (const Segment& segment : plan.segments) {
    if (!segment.point) continue;
    double& most = scratch[segment.point->stage];
    most = std::max(most, static_cast<double>(scratch_bytes(segment)));
  }
  const StageSum sum = scratch.sum();
  for (double StageSum::*part :
       {&StageSum::base, &StageSum::layer, &StageSum::embedding, &StageSum::head})
    costs.scratch.*part = std::max(costs.scratch.*part, sum.*part);
}

void read_memory(const PlannedRun& run, const Depths& depths, StageCosts& costs) {
  const Plan& plan = run.plan();
  std::vector<std::pair<price::HeldKind, ByStage>> held;
  for (const SlotClass& slots : plan.slots) {
    const auto point = [&](int s) { return plan.segments[s].point.value(); };
    const PipelinePoint first = point(slots.first_segment);
    const price::HeldKind kind{first.kind, point(slots.last_segment).kind};
    auto at =
        std::find_if(held.begin(), held.end(), [&](const auto& h) { return h.first == kind; });
    if (at == held.end()) at = held.insert(at, {kind, ByStage(depths)});
    const auto size = static_cast<double>(slots.value_bytes);
    at->second[first.stage] += size;
    const auto index = static_cast<int>(at - held.begin());
    if (first.stage == kFirstStage) costs.held_order[0].push_back(index);
    if (first.stage == kShortStage) costs.held_order[1].push_back(index);
    if (first.stage == kLastStage) costs.held_order[2].push_back(index);
    // More than the message where a stage saves other values in the same slots.
    if (kind.from == PipelineItemKind::kRecvForward)
      costs.hop_bytes = costs.hop_bytes == 0.0 ? size : std::min(costs.hop_bytes, size);
  }
  for (auto& [kind, bytes] : held) costs.held.emplace_back(kind, bytes.sum());
}

void read_parameters(const PlannedRun& run, const Depths& depths, StageCosts& costs) {
  const StateTable& states = run.states();
  const int owners = run.mesh().degree({MeshAxis::kDpShard, MeshAxis::kCp});
  ByStage elements(depths);
  for (int32_t i = 0; i < states.size(); ++i) {
    const StateDecl& decl = states[{i}];
    if (decl.is_absent || decl.window_of.valid()) continue;
    if (decl.kind == StateKind::kInput || decl.kind == StateKind::kResult)
      costs.input_bytes += static_cast<double>(decl.type.bytes());
    if (decl.kind != StateKind::kParameter) continue;
    const auto numel = static_cast<double>(decl.type.numel() * owners);
    elements[decl.stage] += numel;
    if (decl.is_tied) costs.tied_elements += numel;
  }
  costs.elements = elements.sum();
  costs.bytes = element_bytes(run.shape().training);
  costs.slice_unit = static_cast<double>(kBucketAlignment);
  // Here both ends are one rank's, which has the table once.
  costs.elements.head += costs.tied_elements;
}

void read_update(const PlannedRun& run, const price::Machine& machine,
                 const price::PriceOptions& options, StageCosts& costs) {
  double owned = 0.0;
  int num_buckets = 0;
  for (int32_t i = 0; i < run.states().size(); ++i) {
    const StateDecl& decl = run.states()[{i}];
    if (decl.is_absent || decl.kind != StateKind::kParameter) continue;
    owned += static_cast<double>(decl.type.numel());
    ++num_buckets;
  }
  const Plan& plan = run.plan();
  const price::TaskTimes times(plan.groups, machine, options);
  int kernels = 0;
  for (const Segment& segment : plan.segments) {
    if (segment.runs != Segment::Runs::kOnceAfter) continue;
    for (const Task& task : segment.tasks) {
      if (task.rules->is_communication) continue;
      costs.update_s += times.seconds(task, cost_of(task), {});
      ++kernels;
    }
  }
  TOK_CHECK(num_buckets > 0, "a probe without parameters");
  costs.update_s = (costs.update_s - kernels * machine.device.launch_s) / owned;
  costs.update_kernels = kernels / num_buckets;
}

// Of a probe's mesh: the shape's own rank, then one that may need more scratch.
std::vector<std::unique_ptr<PlannedRun>> probe_runs(const ModelSpec& spec, RunShape shape,
                                                    const Target& target) {
  const WholeGraphs whole(spec, shape, target);
  std::vector<std::unique_ptr<PlannedRun>> runs;
  const auto plan = [&](int rank) {
    shape.distribute.rank = rank;
    runs.push_back(std::make_unique<PlannedRun>(spec, shape, target, whole));
  };
  plan(shape.distribute.rank);
  const Mesh mesh = shape.distribute.mesh;
  if (const std::optional<int> uneven = uneven_tp_rank(spec, mesh)) plan(*uneven);
  return runs;
}

// A probe's second rank may lie beyond the machine; nothing is read of messages to it.
price::Machine with_room(price::Machine machine) {
  if (machine.levels.empty()) machine.levels.push_back({.bytes_per_s = 1.0});
  machine.levels.back().num_devices = 0;
  return machine;
}

double saved_bytes(const Plan& plan) {
  double bytes = 0.0;
  for (const MemoryRow& row : plan.memory)
    bytes += row.owner == kSavedActivationsRow ? static_cast<double>(row.bytes) : 0.0;
  return bytes;
}

}  // namespace

price::ElementBytes element_bytes(const TrainingGraphOptions& training) {
  const auto size = [](DType dtype) { return static_cast<double>(size_of(dtype)); };
  return {.master = size(training.master),
          .compute = size(training.compute),
          .gradient = size(gradient_dtype(training.compute))};
}

StageCosts probe_stages(const ModelSpec& model, const RunShape& base, bool split,
                        const Target& target, const price::Machine& machine,
                        const price::PriceOptions& options, int64_t num_gpus) {
  const Depths depths = depths_of(base.recompute);
  const int layers[kNumProbeStages] = {depths.few,  depths.few, depths.few, depths.few,
                                       depths.many, depths.few, depths.few};
  ModelSpec spec = model;
  RunShape shape = base;
  shape.validation.reset();
  DistributeOptions& d = shape.distribute;
  d.mesh.degrees[MeshAxis::kPp] = 2;
  d.mesh.degrees[MeshAxis::kDpReplicate] = 1;
  d.mesh.degrees[MeshAxis::kDpShard] = 1;
  d.num_microbatches = 1;
  d.pipeline = there_and_back(split);
  d.rank = first_of_busiest(d.mesh, causal_work(d));
  d.stage_of_module = {kFirstStage};
  spec.num_layers = 0;
  int planned_layers = 0;
  for (int stage = 0; stage < kNumProbeStages; ++stage) {
    spec.num_layers += layers[stage];
    if (d.pipeline.rank_of_stage[stage] == 0) planned_layers += layers[stage];
    d.stage_of_module.insert(d.stage_of_module.end(), static_cast<size_t>(layers[stage]), stage);
  }
  d.stage_of_module.insert(d.stage_of_module.end(), 2, kLastStage);
  const auto runs = probe_runs(spec, shape, target);
  const PlannedRun& run = *runs.front();
  price::PriceOptions how = options;
  how.device_graphs = run.plan().device_graphs;
  StageCosts costs{.is_split = split};
  costs.span = d.mesh.degree({MeshAxis::kCp, MeshAxis::kTp});
  read_memory(run, depths, costs);
  read_parameters(run, depths, costs);
  const price::Machine roomy = with_room(machine);
  read_update(run, roomy, how, costs);
  how.block_weight = static_cast<double>(model.num_layers) / planned_layers;
  read_times(run.plan(), depths, {roomy, how, num_gpus}, costs);
  for (const auto& planned : runs) raise_scratch(planned->plan(), depths, costs);
  return costs;
}

FlatCosts probe_flat(const ModelSpec& model, const RunShape& base, const Target& target,
                     const price::Machine& machine, const price::PriceOptions& options) {
  const Depths depths = flat_depths_of(base.recompute);
  FlatCosts costs;
  const int counts[] = {depths.few, depths.many};
  double held[2] = {};
  double scratch[2] = {};
  double saved[2] = {};
  double step_s[2] = {};
  for (size_t i = 0; i < 2; ++i) {
    ModelSpec spec = model;
    spec.num_layers = counts[i];
    RunShape shape = base;
    shape.validation.reset();
    shape.distribute.rank = slowest_place(shape.distribute, machine);
    const auto runs = probe_runs(spec, shape, target);
    const Plan& plan = runs.front()->plan();
    const auto scratch_arena = static_cast<size_t>(ArenaKind::kScratch);
    held[i] = static_cast<double>(runs.front()->peak_bytes() - plan.arena_bytes[scratch_arena]);
    saved[i] = saved_bytes(plan);
    price::PriceOptions how = options;
    how.device_graphs = plan.device_graphs;
    how.block_weight = static_cast<double>(model.num_layers) / counts[i];
    const price::PricedRank rank{.plan = &plan};
    const auto num_microbatches = static_cast<int>(base.distribute.num_microbatches);
    step_s[i] = price::price_step({&rank, 1}, num_microbatches, machine, how).seconds;
    for (const auto& planned : runs) {
      for (const Segment& segment : planned->plan().segments) {
        const bool is_once = segment.runs != Segment::Runs::kPerMicrobatch;
        double& most = is_once ? costs.unshard_scratch : scratch[i];
        most = std::max(most, static_cast<double>(scratch_bytes(segment)));
      }
    }
  }
  const auto line = [&](double few, double many) {
    const double layer = (many - few) / (depths.many - depths.few);
    return LayerLine{.base = few - layer * depths.few, .layer = layer};
  };
  costs.held = line(held[0], held[1]);
  costs.scratch = line(saved[0], saved[1]);
  costs.scratch.base += kPackingShare * std::max(scratch[0] - saved[0], scratch[1] - saved[1]);
  costs.step_s = line(step_s[0], step_s[1]);
  return costs;
}

}  // namespace tokamak
