// Seconds and power of a probe's stages, where and at which clocks they may run.
#include <algorithm>
#include <numeric>

#include "tokamak/price/run/probe_stages.h"
#include "tokamak/price/step/segment_price.h"
#include "tokamak/price/task/step_clock.h"

namespace tokamak {
namespace {

using price::Category;
using price::SegmentPrices;
using price::StageCosts;
using price::StagePlace;
using price::StageSeconds;

// Seconds of a kind of work.
struct WorkByStage {
  explicit WorkByStage(const Depths& depths)
      : alone(depths), beside_message(depths), communication(depths) {}

  void set(int stage, const price::SegmentPrice& price) {
    alone[stage] = price.seconds;
    beside_message[stage] = price.seconds * price.held_factor;
    communication[stage] = price.by_category[Category::kExposedComm];
  }

  price::WorkSeconds sum() {
    return {.alone = alone.sum(),
            .beside_message = beside_message.sum(),
            .communication = communication.sum()};
  }

  ByStage alone;
  ByStage beside_message;
  ByStage communication;
};

// Each stage's, and the clocks between which those of its steps lie.
void read_power(const Plan& plan, const Depths& depths, const ProbePrice& how, StageCosts& costs) {
  const price::Device& device = how.machine.device;
  if (device.memory_power <= 0.0) return;
  SegmentPrices prices(plan, how.machine, how.options);
  ByStage products(depths);
  ByStage attention(depths);
  ByStage memory(depths);
  ByStage collectives(depths);
  ByStage drawn(depths);
  price::PowerUse all;
  for (int s = 0; s < std::ssize(plan.segments); ++s) {
    prices.add_power(s, 1.0, how.options.block_weight, all);
    const auto& point = plan.segments[s].point;
    if (!point) continue;
    price::PowerUse use;
    prices.add_power(s, 1.0, 1.0, use);
    products[point->stage] += use.products_s;
    attention[point->stage] += use.attention_s;
    memory[point->stage] += use.memory_s;
    collectives[point->stage] += use.collective_s;
    drawn[point->stage] += use.drawn_s;
  }
  costs.power = {.products_s = products.sum(),
                 .attention_s = attention.sum(),
                 .memory_s = memory.sum(),
                 .collective_s = collectives.sum(),
                 .drawn_s = drawn.sum()};
  const price::PowerUse layer{.products_s = costs.power.products_s.layer,
                              .attention_s = costs.power.attention_s.layer,
                              .memory_s = costs.power.memory_s.layer,
                              .collective_s = costs.power.collective_s.layer,
                              .drawn_s = costs.power.drawn_s.layer};
  constexpr double kApart = 0.98;  // so that seconds between them are a line
  costs.fast_clock = step_clock(all, device);
  costs.slow_clock = std::min(step_clock(layer, device), kApart * costs.fast_clock);
}

// Of the first layer that the segment runs. What it has none of, and other parts of the stage have,
// comes last.
std::vector<price::Stretch> stretches_of(const Segment& segment, const price::SegmentPrice& price) {
  std::vector<price::Stretch> stretches(1);
  price::Stretch sum;
  int block = -1;
  double end_s = 0.0;
  for (size_t t = 0; t < segment.tasks.size(); ++t) {
    const Task& task = segment.tasks[t];
    if (task.stream != 0 || task.label.block < 0) continue;
    if (block < 0) {
      block = task.label.block;
      end_s = price.begin_s[t];
    }
    if (task.label.block != block) break;
    // Collectives of other streams leave gaps.
    const double begin_s = task.rules->is_communication ? price.end_s[t] : price.begin_s[t];
    stretches.back().communication += begin_s - end_s;
    sum.communication += begin_s - end_s;
    end_s = price.end_s[t];
    if (end_s == begin_s) continue;
    if (stretches.back().communication > 0.0) stretches.emplace_back();
    stretches.back().kernels += end_s - begin_s;
    sum.kernels += end_s - begin_s;
  }
  if (sum.kernels == 0.0) sum.kernels = stretches.back().kernels = 1.0;
  if (sum.communication == 0.0) sum.communication = stretches.back().communication = 1.0;
  for (price::Stretch& stretch : stretches) {
    stretch.kernels /= sum.kernels;
    stretch.communication /= sum.communication;
  }
  return stretches;
}

StageSeconds read_seconds(const Plan& plan, const Depths& depths, const ProbePrice& how,
                          bool is_split, double clock) {
  SegmentPrices prices(plan, how.machine, how.options);
  prices.set_clock(clock);
  const price::TaskTimes times(plan.groups, how.machine, how.options);
  WorkByStage forward(depths);
  WorkByStage backward(depths);
  WorkByStage first_backward(depths);
  WorkByStage weight(depths);
  WorkByStage first_weight(depths);
  ByStage tp_reduce(depths);
  std::vector<price::Stretch> stretches;
  for (size_t s = 0; s < plan.segments.size(); ++s) {
    const Segment& segment = plan.segments[s];
    if (!segment.point) continue;
    const auto [kind, stage] = *segment.point;
    const auto priced = [&](bool is_first) -> const price::SegmentPrice& {
      return prices.price({.segment = static_cast<int>(s), .is_first = is_first, .is_last = false});
    };
    if (kind == PipelineItemKind::kForward) forward.set(stage, priced(false));
    const bool makes_gradients = kind == PipelineItemKind::kBackwardWeight ||
                                 (kind == PipelineItemKind::kBackwardInput && !is_split);
    if (makes_gradients && stage == kLongStage) stretches = stretches_of(segment, priced(false));
    if (kind == PipelineItemKind::kBackwardInput) {
      backward.set(stage, priced(false));
      first_backward.set(stage, priced(true));
    }
    if (kind == PipelineItemKind::kBackwardWeight) {
      weight.set(stage, priced(false));
      first_weight.set(stage, priced(true));
    }
    for (const Task& task : segment.tasks) {
      if (!task.rules->is_communication || task.when != When::kLastMicrobatch) continue;
      const CommGroup group = task.rules->group(task.op.get());
      if (plan.groups.entries[group.id].axes == AxisSet{MeshAxis::kTp})
        tp_reduce[stage] += times.seconds(task, cost_of(task), {});
    }
  }
  return {.forward = forward.sum(),
          .backward = backward.sum(),
          .first_backward = first_backward.sum(),
          .weight = weight.sum(),
          .first_weight = first_weight.sum(),
          .tp_reduce = tp_reduce.sum(),
          .stretches = std::move(stretches)};
}

// The groups of a stage that begins at another rank.
GroupTable moved(GroupTable groups, int first_rank) {
  for (GroupTable::Entry& group : groups.entries) {
    for (int& rank : group.ranks) rank += first_rank;
  }
  return groups;
}

// How the groups inside a stage lie.
std::vector<price::GroupLayout> layouts_inside(const GroupTable& groups,
                                               const price::Machine& machine) {
  std::vector<price::GroupLayout> layouts;
  for (const GroupTable::Entry& group : groups.entries) {
    if (!group.axes.contains(MeshAxis::kPp))
      layouts.push_back(price::layout_of(group.ranks, machine));
  }
  return layouts;
}

// Of first ranks that are multiples of `span`, from how many on the ways in which such stages lie
// in the fabric repeat themselves.
int64_t period_of_places(int span, const price::Machine& machine) {
  int64_t period = span;
  for (const price::Level& level : machine.levels) {
    // Else all of a stage lies in one domain, or begins one.
    if (level.num_devices > 0 && level.num_devices % span != 0 && span % level.num_devices != 0)
      period = std::lcm<int64_t>(period, level.num_devices);
  }
  return period / span;
}

StagePlace read_place(const Plan& plan, const Depths& depths, const ProbePrice& how,
                      const StageCosts& costs) {
  StagePlace place{.fast = read_seconds(plan, depths, how, costs.is_split, costs.fast_clock),
                   .slow = {}};
  if (costs.slow_clock != costs.fast_clock)
    place.slow = read_seconds(plan, depths, how, costs.is_split, costs.slow_clock);
  return place;
}

}  // namespace

void read_times(const Plan& plan, const Depths& depths, const ProbePrice& how, StageCosts& costs) {
  read_power(plan, depths, how, costs);
  costs.places = {read_place(plan, depths, how, costs)};
  costs.place_of = {0};
  std::vector<std::vector<price::GroupLayout>> known{layouts_inside(plan.groups, how.machine)};
  const int64_t period =
      std::min(period_of_places(costs.span, how.machine), how.num_gpus / costs.span);
  for (int64_t i = 1; i < period; ++i) {
    GroupTable groups = moved(plan.groups, static_cast<int>(i * costs.span));
    auto layouts = layouts_inside(groups, how.machine);
    const auto at = std::find(known.begin(), known.end(), layouts);
    costs.place_of.push_back(static_cast<int>(at - known.begin()));
    if (at != known.end()) continue;
    known.push_back(std::move(layouts));
    Plan there = plan;
    there.groups = std::move(groups);
    costs.places.push_back(read_place(there, depths, how, costs));
  }
}

}  // namespace tokamak
