#include "tokamak/price/run/stage_probe.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "tokamak/price/run/slowest_place.h"
#include "tokamak/price/step/segment_price.h"
#include "tokamak/price/step/step_price.h"

namespace tokamak {
namespace {

using price::StageCosts;
using price::StageSum;

// The probed rank has a stage with the embedding, two inner ones of different depth, and one with
// the head. Another rank has a stage between any two, so that all values travel.
constexpr int kFirstStage = 0;
constexpr int kShortStage = 2;
constexpr int kLongStage = 4;
constexpr int kLastStage = 6;
constexpr int kNumProbeStages = 7;
constexpr int kNumMicrobatches = 2;
// Microbatches of a step whose power sets the clocks: with more of them its ends matter less.
constexpr int64_t kMicrobatchesOfClock = 16;

// The layers of stages, in multiples of the period in which the recompute policy repeats.
struct Depths {
  int few = 2;
  int many = 4;

  int planned_layers() const { return 3 * few + many; }
};

// Collects values of the four stages, and gives them as a sum over modules.
class ByStage {
 public:
  explicit ByStage(const Depths& depths) : depths_(depths) {}

  double& operator[](int stage) { return values_[stage]; }

  StageSum sum() {
    StageSum sum;
    sum.layer = (values_[kLongStage] - values_[kShortStage]) / (depths_.many - depths_.few);
    sum.base = values_[kShortStage] - depths_.few * sum.layer;
    sum.embedding = values_[kFirstStage] - values_[kShortStage];
    sum.head = values_[kLastStage] - values_[kShortStage];
    return sum;
  }

 private:
  Depths depths_;
  std::map<int, double> values_;
};

Depths depths_of(const RecomputePolicy& policy) {
  const bool has_period = policy.mode == RecomputePolicy::Mode::kSelectiveLayers;
  const int period = has_period ? policy.every_nth_block : 1;
  const int few = std::max(2, period) / period * period;
  return {.few = few, .many = 2 * few};
}

// Runs two microbatches through all stages of two ranks and back, so that gradients accumulate.
PipelineSchedule there_and_back(bool split) {
  PipelineSchedule s{.name = "probe", .num_ranks = 2, .num_microbatches = kNumMicrobatches};
  s.actions.resize(2);
  for (int stage = 0; stage < kNumProbeStages; ++stage) s.rank_of_stage.push_back(stage % 2);
  for (int m = 0; m < kNumMicrobatches; ++m) {
    for (int stage = 0; stage < kNumProbeStages; ++stage)
      s.actions[stage % 2].push_back({PipelineOp::kForward, stage, m});
    for (int stage = kNumProbeStages - 1; stage >= 0; --stage) {
      auto& actions = s.actions[stage % 2];
      if (!split) {
        actions.push_back({PipelineOp::kBackward, stage, m});
      } else {
        actions.push_back({PipelineOp::kBackwardInput, stage, m});
        actions.push_back({PipelineOp::kBackwardWeight, stage, m});
      }
    }
  }
  return s;
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
    // The size exceeds the message if a stage saves other values in the same slots.
    if (kind.from == PipelineItemKind::kRecvForward)
      costs.hop_bytes = costs.hop_bytes == 0.0 ? size : std::min(costs.hop_bytes, size);
  }
  for (auto& [kind, bytes] : held) costs.held.emplace_back(kind, bytes.sum());
  ByStage scratch(depths);
  for (const Segment& segment : plan.segments) {
    if (!segment.point) continue;
    double& most = scratch[segment.point->stage];
    most = std::max(most, static_cast<double>(scratch_bytes(segment)));
  }
  costs.scratch = scratch.sum();
}

void read_parameters(const PlannedRun& run, const Depths& depths, StageCosts& costs) {
  const StateTable& states = run.states();
  const int owners = run.mesh().degree(kShardAxes);
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
  costs.bytes = element_bytes(run.shape());
  // Here one rank has both ends, and so has the table once.
  costs.elements.head += costs.tied_elements;
}

// Collects seconds of one kind of item.
class PassByStage {
 public:
  explicit PassByStage(const Depths& depths)
      : all_(depths), first_(depths), communication_(depths) {}

  void set(int stage, const price::SegmentPrice& price, const price::SegmentPrice& first) {
    all_[stage] = price.seconds;
    first_[stage] = first.seconds;
    communication_[stage] = price.by_category[price::Category::kExposedComm];
    if (stage == kLongStage) held_factor_ = price.held_factor;
  }

  price::PassSeconds sum() {
    return {.all = all_.sum(),
            .first = first_.sum(),
            .communication = communication_.sum(),
            .held_factor = held_factor_};
  }

 private:
  ByStage all_;
  ByStage first_;
  ByStage communication_;
  double held_factor_ = 1.0;
};

// Reads seconds at the clocks of a rank with as much of the model as the options' `block_weight`
// says.
price::StageSeconds read_seconds(const Plan& plan, const GroupTable& groups, const Depths& depths,
                                 const price::Machine& machine, const price::PriceOptions& options,
                                 const price::ElementBytes& bytes) {
  price::SegmentPrices prices(plan, groups, machine, options);
  std::vector<int64_t> runs;
  for (const Segment& segment : plan.segments)
    runs.push_back(segment.runs == Segment::Runs::kPerMicrobatch ? kMicrobatchesOfClock : 1);
  prices.settle_clock(runs);
  PassByStage forward(depths);
  PassByStage backward(depths);
  PassByStage weight(depths);
  StageSum encode;
  for (int s = 0; s < std::ssize(plan.segments); ++s) {
    const Segment& segment = plan.segments[s];
    if (segment.runs == Segment::Runs::kOnceBefore)
      encode.layer += prices.price({.segment = s}).seconds / depths.planned_layers();
    if (!segment.point || segment.is_background) continue;
    const auto [kind, stage] = *segment.point;
    PassByStage& pass = kind == PipelineItemKind::kForward          ? forward
                        : kind == PipelineItemKind::kBackwardWeight ? weight
                                                                    : backward;
    pass.set(stage, prices.price({.segment = s, .is_first = false, .is_last = false}),
             prices.price({.segment = s, .is_first = true, .is_last = false}));
  }
  return {.forward = forward.sum(),
          .backward = backward.sum(),
          .weight = weight.sum(),
          .encode = bytes.has_codes ? encode : StageSum(),
          .encodes_slices = bytes.gathered < bytes.compute};
}

// Returns after how many stages, whose first ranks are multiples of `span`, their positions in the
// fabric repeat.
int64_t period_of_places(int span, const price::Machine& machine) {
  int64_t period = span;
  for (const price::Level& level : machine.levels) {
    // Otherwise a stage lies within one domain, or begins one.
    if (level.num_devices > 0 && level.num_devices % span != 0 && span % level.num_devices != 0)
      period = std::lcm<int64_t>(period, level.num_devices);
  }
  return period / span;
}

// Fills `places` and `place_of`.
void read_places(const Plan& plan, const Depths& depths, const price::Machine& machine,
                 const price::PriceOptions& options, int64_t num_gpus, StageCosts& costs) {
  std::vector<std::vector<price::GroupLayout>> known;
  const int64_t period =
      std::max<int64_t>(1, std::min(period_of_places(costs.span, machine), num_gpus / costs.span));
  costs.places.clear();
  costs.place_of.clear();
  for (int64_t i = 0; i < period; ++i) {
    const auto first_rank = static_cast<int>(i * costs.span);
    GroupTable groups = plan.groups;
    std::vector<price::GroupLayout> layouts;  // of groups inside the stage
    for (GroupTable::Entry& group : groups.entries) {
      for (int& rank : group.ranks) rank += first_rank;
      if (!group.axes.contains(MeshAxis::kPp))
        layouts.push_back(price::layout_of(group.ranks, machine));
    }
    const auto at = std::find(known.begin(), known.end(), layouts);
    costs.place_of.push_back(static_cast<int>(at - known.begin()));
    if (at != known.end()) continue;
    known.push_back(std::move(layouts));
    costs.places.push_back(read_seconds(plan, groups, depths, machine, options, costs.bytes));
    costs.places.back().link =
        price::link_of(price::strided_layout(costs.span, 1, machine, first_rank));
  }
}

// A probe's second rank may lie beyond the machine; the times of messages to it are not read.
price::Machine with_room(price::Machine machine) {
  if (machine.levels.empty()) machine.levels.push_back({.bytes_per_s = 1.0});
  machine.levels.back().num_devices = 0;
  return machine;
}

}  // namespace

price::ElementBytes element_bytes(const RunShape& shape) {
  const TrainingGraphOptions& training = shape.training;
  const auto size = [](DType dtype) { return static_cast<double>(size_of(dtype)); };
  const bool gathers_codes = shape.float8 && shape.float8->recipe.gathers_codes();
  return {.master = size(training.master),
          .compute = size(training.compute),
          .gradient = size(gradient_dtype(training.compute)),
          .gathered = gathers_codes ? 1.0 : size(training.compute),
          .has_codes = shape.float8.has_value()};
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
  if (shape.float8) {  // a probe has fewer layers than may be left out
    shape.float8->layers.bf16_at_start = 0;
    shape.float8->layers.bf16_at_end = 0;
  }
  DistributeOptions& d = shape.distribute;
  d.mesh.degrees[MeshAxis::kPp] = 2;
  d.mesh.degrees[MeshAxis::kDpReplicate] = 1;
  d.mesh.degrees[MeshAxis::kDpShard] = 1;
  d.num_microbatches = kNumMicrobatches;
  d.covers_forwards = false;  // a probe's segments are priced apart
  d.pipeline = there_and_back(split);
  d.rank = first_of_busiest(d.mesh, causal_work(d));
  d.stage_of_module = {kFirstStage};
  spec.num_layers = 0;
  for (int stage = 0; stage < kNumProbeStages; ++stage) {
    spec.num_layers += layers[stage];
    d.stage_of_module.insert(d.stage_of_module.end(), static_cast<size_t>(layers[stage]), stage);
  }
  d.stage_of_module.insert(d.stage_of_module.end(), 2, kLastStage);
  const PlannedRun run(spec, shape, target);
  price::PriceOptions how = options;
  how.device_graphs = run.plan().device_graphs;
  how.block_weight = static_cast<double>(model.num_layers) / depths.planned_layers();
  StageCosts costs{.span = d.mesh.degree({MeshAxis::kCp, MeshAxis::kTp})};
  read_memory(run, depths, costs);
  read_parameters(run, depths, costs);
  const price::Machine roomy = with_room(machine);
  read_places(run.plan(), depths, roomy, how, num_gpus, costs);
  return costs;
}

double flat_seconds(const ModelSpec& model, const RunShape& base, const Target& target,
                    const price::Machine& machine, const price::PriceOptions& options) {
  const Depths depths = depths_of(base.recompute);
  const auto num_microbatches = static_cast<int>(base.distribute.num_microbatches);
  // Gathers ahead and reductions behind make the first layers differ from the others.
  const int few = depths.many;
  const int many = few + depths.few;
  const auto seconds_of = [&](int layers) {
    ModelSpec spec = model;
    spec.num_layers = layers;
    RunShape shape = base;
    shape.validation.reset();
    shape.distribute.rank = slowest_place(shape.distribute, machine);
    const PlannedRun run(spec, shape, target);
    price::PriceOptions how = options;
    how.device_graphs = run.plan().device_graphs;
    how.block_weight = static_cast<double>(model.num_layers) / layers;
    const price::PricedRank rank{.plan = &run.plan()};
    return price::price_step({&rank, 1}, num_microbatches, machine, how).seconds;
  };
  const double few_s = seconds_of(few);
  const double layer_s = (seconds_of(many) - few_s) / (many - few);
  return few_s + layer_s * (static_cast<double>(model.num_layers) - few);
}

}  // namespace tokamak
