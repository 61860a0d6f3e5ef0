#include "tokamak/run/planned_run.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "tokamak/core/bytes.h"
#include "tokamak/core/error.h"
#include "tokamak/plan/used_groups.h"
#include "tokamak/run/op_table.h"

namespace tokamak {

namespace {

// Returns a policy by which all ranks of tp recompute the same nodes. Where their parts of blocks
// differ, a choice by bytes would differ, too, and with it their collectives, so they recompute
// whole blocks instead.
RecomputePolicy recompute_by_all(const RecomputePolicy& policy, bool is_even) {
  if (policy.mode != RecomputePolicy::Mode::kMemoryBudget || is_even) return policy;
  return {.mode = policy.memory_budget < 1.0 ? RecomputePolicy::Mode::kFull
                                             : RecomputePolicy::Mode::kNone,
          .emit_on_backward = policy.emit_on_backward};
}

// Finds the same State in the table of one rank: inputs and results keep their names.
StepState find_step_state(const StateTable& states, const std::string& prefix) {
  const auto find = [&](const char* name) { return states.find(prefix + name); };
  return {.tokens = find("tokens"),
          .labels = find("labels"),
          .positions = find("positions"),
          .rows = find("rows"),
          .loss_scale = find("loss_scale"),
          .scalars = find("scalars"),
          .loss = find("loss"),
          .grad_norm = find("grad_norm"),
          .norm_limit = find("norm_limit")};
}

// This is enough rows of a vocabulary of 128k that matmuls run at full rate and dw is rewritten
// seldom.
constexpr int64_t kGpuLogitsBytes = int64_t{1} << 30U;
// One tile of the matmuls.
constexpr int64_t kGpuLogitsMultiple = 128;

bool wants_graphs(DeviceGraphs choice, const Plan& plan, const Rates& rates) {
  return choice == DeviceGraphs::kAlways ||
         (choice == DeviceGraphs::kAuto && is_launch_bound(plan, rates));
}

// Returns the axes whose ranks may lay out their memory differently: ranks of cp attend to parts of
// different lengths, and ranks of tp may have unequal shares of a vocabulary.
AxisSet unlike_axes(const ModelSpec& model, const Mesh& mesh) {
  AxisSet unlike;
  if (mesh.degree(MeshAxis::kCp) > 1) unlike.add(MeshAxis::kCp);
  if (model.vocab_size % mesh.degree(MeshAxis::kTp) != 0) unlike.add(MeshAxis::kTp);
  return unlike;
}

int pipeline_rank(const DistributeOptions& o) {
  return o.mesh.coordinates(o.rank)[MeshAxis::kPp];
}

std::vector<PipelineItem> training_items(const DistributeOptions& o) {
  if (o.mesh.degree(MeshAxis::kPp) == 1) return {};
  return lower_schedule(o.pipeline, pipeline_rank(o), o.receives_ahead);
}

// Returns items that run one microbatch forward through the stages.
std::vector<PipelineItem> validation_items(const DistributeOptions& o) {
  if (o.mesh.degree(MeshAxis::kPp) == 1) return {};
  const std::vector<int>& rank_of = o.pipeline.rank_of_stage;
  const auto num_stages = static_cast<int>(rank_of.size());
  std::vector<PipelineItem> items;
  for (const int stage : o.pipeline.stages_of(pipeline_rank(o))) {
    const auto is_elsewhere = [&](int other) {
      return other >= 0 && other < num_stages && rank_of[other] != pipeline_rank(o);
    };
    if (is_elsewhere(stage - 1))
      items.push_back({.kind = PipelineItemKind::kRecvForward, .stage = stage});
    items.push_back({.kind = PipelineItemKind::kForward, .stage = stage});
    if (is_elsewhere(stage + 1))
      items.push_back({.kind = PipelineItemKind::kSendForward, .stage = stage});
  }
  return items;
}

TrainingGraphOptions for_gpu(TrainingGraphOptions o) {
  o.logits_bytes = kGpuLogitsBytes;
  if (o.pads_logits) o.logits_multiple = kGpuLogitsMultiple;
  return o;
}

RunShape shape_for(RunShape shape, const Target& target) {
  if (target.backend != "gpu") return shape;
  shape.training = for_gpu(shape.training);
  if (shape.validation) shape.validation = for_gpu(*shape.validation);
  return shape;
}

ModelAxes axes_of(const ModelSpec& config) {
  return {.num_heads = config.num_heads, .num_kv_heads = config.num_kv_heads};
}

TrainingGraphOptions of_all_ranks(TrainingGraphOptions o, const Mesh& mesh) {
  o.batch *= mesh.degree(kBatchAxes);
  o.seq_len = padded_seq_len(o.seq_len, mesh);
  return o;
}

}  // namespace

int64_t padded_seq_len(int64_t seq_len, const Mesh& mesh) {
  const int64_t cp = mesh.degree(MeshAxis::kCp);
  const int64_t tp = mesh.degree(MeshAxis::kTp);
  const int64_t unit = cp > 1 ? cp * std::lcm(int64_t{2}, tp) : tp;
  TOK_CHECK(unit > 0, "cp {}, tp {}", cp, tp);
  return (seq_len + unit - 1) / unit * unit;
}

WholeGraphs::WholeGraphs(const ModelSpec& config, const RunShape& given, const Target& target)
    : training_(states_) {
  const RunShape shape = shape_for(given, target);
  const DistributeOptions& o = shape.distribute;
  build_gradient_graph(training_, config, of_all_ranks(shape.training, o.mesh));
  LowPrecisionNotes marked = o.low_precision.mark(training_, o.mesh, shape.training.compute);
  notes_ = std::move(marked.notes);
  precision_line_ = std::move(marked.line);
  training_placements_ = decide_placements(training_, o.mesh, axes_of(config), o.sequence_parallel);
  if (!shape.validation) return;
  validation_.emplace(states_);
  build_validation_graph(*validation_, config, of_all_ranks(*shape.validation, o.mesh));
  o.low_precision.mark(*validation_, o.mesh, shape.training.compute);
}

PlannedRun::PlannedRun(const ModelSpec& config, const RunShape& shape, const Target& target)
    : config_(config), shape_(shape_for(shape, target)) {
  const std::string why_not = low_precision().why_not(target);
  TOK_REQUIRE(why_not.empty(), "model.converters: {}", why_not);
  if (mesh().size() == 1 && target.backend != "gpu") {
    plan_one_rank(target);
  } else {
    plan_of_mesh(target, WholeGraphs(config, shape, target));
  }
  finish(target);
}

PlannedRun::PlannedRun(const ModelSpec& config, const RunShape& shape, const Target& target,
                       const WholeGraphs& whole)
    : config_(config), shape_(shape_for(shape, target)) {
  plan_of_mesh(target, whole);
  finish(target);
}

void PlannedRun::finish(const Target& target) {
  if (target.backend != "gpu") return;
  const std::vector<Plan*> plans = made_plans();
  for (Plan* plan : plans)
    plan->device_graphs = wants_graphs(shape_.device_graphs, *plan, target.rates);
  if (plan_without_scales_) plan_without_scales_->device_graphs = false;  // it seldom runs
  choose_transports(plans, target,
                    {.choice = shape_.copy_engines,
                     .num_ranks = mesh().size(),
                     .by_group = shape_.distribute.covers_collectives,
                     .unlike = unlike_axes(config_, mesh())});
  const Plan& first = *plans.front();
  for (size_t id = 0; id < first.transports.size(); ++id) {
    if (first.transports[id] == Transport::kKernels) continue;
    const bool is_sure = first.transports[id] == Transport::kCopyEngines;
    notes_.push_back(fmt::format("copy engines carry \"{}\"{}", first.groups.entries[id].name,
                                 is_sure ? "" : " where its ranks lay out their memory alike"));
  }
}

// Without training, State that only a step touches takes no bytes.
void PlannedRun::lay_out_states(std::span<const StateId> in_host) {
  if (shape_.trains) {
    layout_ = lay_out(states_, in_host);
    return;
  }
  StateTable kept;
  for (int32_t i = 0; i < states_.size(); ++i) {
    StateDecl decl = states_[{i}];
    decl.is_absent = decl.is_absent || decl.kind == StateKind::kMoment ||
                     decl.kind == StateKind::kGradient || decl.kind == StateKind::kBuffer;
    kept.declare(decl);
  }
  layout_ = lay_out(kept);
}

std::vector<Plan*> PlannedRun::made_plans() {
  std::vector<Plan*> plans;
  for (std::optional<Plan>* plan : {&plan_, &validation_plan_, &plan_without_scales_}) {
    if (*plan) plans.push_back(&**plan);
  }
  return plans;
}

// Picks State to offload, unit by unit, until `bytes` is reached. Masters that ops other than the
// update and casts read stay on the device.
std::vector<StateId> PlannedRun::offloaded(const std::vector<UpdateUnit>& units,
                                           int64_t bytes) const {
  const bool moves_masters = shape_.training.compute != shape_.training.master;
  std::vector<StateId> in_host;
  for (const UpdateUnit& unit : units) {
    std::vector<StateId> states{unit.master};
    states.insert(states.end(), unit.moments.begin(), unit.moments.end());
    for (const StateId id : states) {
      if (bytes <= 0 || (id == unit.master && !moves_masters)) continue;
      in_host.push_back(id);
      bytes -= states_[id].type.bytes();
    }
  }
  return in_host;
}

// Lays out State and plans `graphs`. What lies in host memory changes no other arena, so the bytes
// that a first plan has too many are those to move.
void PlannedRun::plan_training(const LoweredStep& graphs, const CompileOptions& options,
                               const std::vector<UpdateUnit>& units) {
  if (!shape_.trains) return lay_out_states();
  const OffloadOptions& o = shape_.offload;
  const auto plan = [&](int64_t bytes_in_host) {
    lay_out_states(offloaded(units, bytes_in_host));
    plan_ = compile(graphs.graph, layout_, options);
    if (!graphs.without_scales) return;
    plan_without_scales_ = compile(*graphs.without_scales, layout_, options);
    plan_->hold_room_for(*plan_without_scales_);
  };
  plan(o.enable && !o.device_bytes ? INT64_MAX : 0);
  if (o.enable && o.device_bytes && plan_->peak_bytes() > *o.device_bytes)
    plan(plan_->peak_bytes() - *o.device_bytes);
}

void PlannedRun::plan_one_rank(const Target& target) {
  shape_.training.has_copies = shape_.distribute.keep_copies && !low_precision();
  Graph training(states_);
  const GradientGraph parts = build_gradient_graph(training, config_, shape_.training);
  const DType compute = shape_.training.compute;
  LowPrecisionNotes marked = low_precision().mark(training, mesh(), compute);
  notes_ = std::move(marked.notes);
  precision_line_ = std::move(marked.line);
  build_update(training, parts.units, parts.loss, parts.state, shape_.training.optimizer,
               shape_.training.seed, {});
  step_ = parts.state;
  Graph validation(states_);
  if (shape_.validation) {
    shape_.validation->has_copies = shape_.training.has_copies;
    validation_step_ = build_validation_graph(validation, config_, *shape_.validation);
    low_precision().mark(validation, mesh(), compute);
  }
  const LoweredStep graphs = low_precision().lower_step(training, {});
  const Graph lowered_validation = low_precision().lower(validation, {});
  plan_training(
      graphs,
      {.recompute = shape_.recompute, .fuse_readers = low_precision().fuses(), .target = target},
      parts.units);
  pieces_ = whole_pieces(states_);
  set_scale_pieces(states_, true, pieces_);
  if (shape_.validation) {
    validation_plan_ = compile(lowered_validation, layout_,
                               {.fuse_readers = low_precision().fuses(), .target = target});
  }
  plan_copies(parts.units, target);
}

void PlannedRun::plan_copies(const std::vector<UpdateUnit>& units, const Target& target) {
  Graph copies(states_);
  build_copies(copies, units);
  if (copies.size() > 0) copies_plan_ = compile(copies, layout_, {.target = target});
}

void PlannedRun::plan_of_mesh(const Target& target, const WholeGraphs& whole) {
  DistributeOptions& o = shape_.distribute;
  TOK_CHECK(o.mesh.degree(MeshAxis::kPp) == 1 || o.pipeline.num_microbatches == o.num_microbatches,
            "a schedule of {} microbatches for {}", o.pipeline.num_microbatches,
            o.num_microbatches);
  o.model = axes_of(config_);
  const bool is_even = cuts_blocks_evenly(whole.training(), whole.training_placements());
  if (!is_even) {
    // Ranks with unequal parts would overlap their collectives with other matmuls, in other orders.
    o.covers_collectives = o.covers_forwards = o.covers_context = false;
  }
  Distributor distributor(states_, o);
  Graph training = distributor.localize(whole.training(), whole.training_placements());
  for (const char* name : {"grad_norm", "scalars", "norm_limit"}) {
    const StateId found = whole.states().find(name);
    if (found.valid()) states_.declare_once(whole.states()[found]);
  }
  step_ = find_step_state(states_, "");
  const std::vector<UpdateUnit> units = distributor.units(training);
  build_update(training, units, read_final(training, step_.loss), step_, shape_.training.optimizer,
               shape_.training.seed,
               {.sum = distributor.norm_group(), .copies = distributor.norm_copies_group()});
  std::optional<Graph> validation;
  if (whole.validation() != nullptr) {
    validation = distributor.localize(*whole.validation());
    validation_step_ = find_step_state(states_, "validation.");
  }
  const WeightGroups groups = distributor.weight_groups();
  const LoweredStep graphs = low_precision().lower_step(training, groups);
  std::optional<Graph> lowered_validation;
  if (validation) lowered_validation.emplace(low_precision().lower(*validation, groups));
  pieces_ = distributor.pieces();
  set_scale_pieces(states_, groups.replicas.rank == 0, pieces_);
  notes_ = whole.notes();
  precision_line_ = whole.precision_line();
  notes_.insert(notes_.end(), distributor.notes().begin(), distributor.notes().end());
  plan_training(graphs,
                {.recompute = recompute_by_all(shape_.recompute, is_even),
                 .fuse_readers = low_precision().fuses(),
                 .target = target,
                 .pipeline = training_items(o),
                 .overlaps_gathers = o.overlaps_gathers,
                 .joins_forwards = o.covers_forwards && o.covers_collectives,
                 .groups = distributor.groups()},
                units);
  if (validation) {
    validation_plan_ = compile(*lowered_validation, layout_,
                               {.fuse_readers = low_precision().fuses(),
                                .target = target,
                                .pipeline = validation_items(o),
                                .groups = distributor.groups()});
  }
  drop_unused_groups(made_plans());
  plan_copies(units, target);
}

std::vector<const Plan*> PlannedRun::plans() const {
  std::vector<const Plan*> plans;
  for (const std::optional<Plan>* plan : {&plan_, &validation_plan_, &plan_without_scales_}) {
    if (*plan) plans.push_back(&**plan);
  }
  return plans;
}

int64_t PlannedRun::peak_bytes() const {
  return tokamak::peak_bytes(*plans().front(), validation_plan());
}

int64_t peak_bytes(const Plan& plan, const Plan* validation) {
  int64_t total = 0;
  for (size_t a = 0; a < kNumDeviceArenas; ++a)
    total += std::max(plan.arena_bytes[a], validation != nullptr ? validation->arena_bytes[a] : 0);
  return total;
}

std::string memory_table(const PlannedRun& run) {
  const bool has_host = run.host_bytes() > 0;
  std::string text;
  const auto line = [&](std::string_view owner, int64_t bytes, int64_t host_bytes) {
    text += fmt::format("  {:<28}{:>16} bytes {:>10.3f} GiB", owner, bytes, gib(bytes));
    if (has_host) text += fmt::format("   host {:>10.3f} GiB", gib(host_bytes));
    text += "\n";
  };
  int64_t listed = 0;
  for (const MemoryRow& row : run.plans().front()->memory) {
    line(row.owner, row.bytes, row.host_bytes);
    listed += row.bytes;
  }
  if (run.peak_bytes() > listed) line("validation beyond training", run.peak_bytes() - listed, 0);
  line("peak (planned = allocated)", run.peak_bytes(), run.host_bytes());
  return text;
}

}  // namespace tokamak
