#include "tokamak/search/point_estimates.h"

#include <algorithm>

#include "tokamak/core/bytes.h"
#include "tokamak/core/error.h"
#include "tokamak/core/in_parallel.h"
#include "tokamak/price/machine/device_spread.h"
#include "tokamak/price/run/priced_run.h"
#include "tokamak/price/run/stage_probe.h"
#include "tokamak/price/step/step_estimate.h"
#include "tokamak/run/run_of_config.h"
#include "tokamak/search/mesh_spread.h"

namespace tokamak {
namespace {

// A rank may hold less of what stages save for their backward; the bound counts this share.
constexpr double kSurelySaved = 0.8;

int owners_of(const SearchPoint& point) {
  return static_cast<int>(point.degrees.dp_shard * point.degrees.cp);
}

}  // namespace

PointEstimates::PointEstimates(const SearchRequest& request)
    : request_(request),
      machine_(price::slowest_of(request.machine, request.num_gpus)),
      target_(priced_target(request.config, machine_)),
      model_(spec_of(request.config)),
      all_{.layers = static_cast<int>(model_.num_layers), .has_embedding = true, .has_head = true},
      bytes_(element_bytes(shape_of(config_of({}, request.config, 1), model_, {.degrees = {}}))),
      work_(causal_work(distribute_options(config_of({}, request.config, 1), {}, 0))),
      limit_(memory_limit(request.machine)),
      shapes_(all_.layers) {}

PointEstimates::StageKey PointEstimates::stage_key(const SearchPoint& p) {
  return {p.degrees.tp, p.degrees.cp, p.microbatch, p.recompute, p.linear};
}

std::vector<PointEstimate> PointEstimates::bounds(const std::vector<SearchPoint>& points) {
  std::map<StageKey, std::vector<const SearchPoint*>> by_stage;
  double least = std::numeric_limits<double>::infinity();
  for (const SearchPoint& p : points) {
    const double bytes = weight_bytes(p);
    least = std::min(least, bytes);
    if (bytes <= limit_) by_stage[stage_key(p)].push_back(&p);
  }
  TOK_REQUIRE(
      !by_stage.empty(),
      "--search: weights and optimizer take at least {:.1f} GiB of a device, which has {:.1f}: "
      "wanted more --gpus or a smaller model",
      least / kGiB, limit_ / kGiB);
  std::vector<const std::vector<const SearchPoint*>*> stages;
  for (const auto& [key, members] : by_stage) {
    stages.push_back(&members);
    probes_[key];
  }
  std::vector<StageBounds> bounds(stages.size());
  in_parallel(stages.size(), request_.num_threads,
              [&](size_t s) { bounds[s] = bounds_of_stage(*stages[s]); });
  const auto is_planned = [](const auto& probes) { return probes.second.error.empty(); };
  TOK_REQUIRE(std::any_of(probes_.begin(), probes_.end(), is_planned), "--search: {}",
              probes_.begin()->second.error);
  std::vector<PointEstimate> all;
  for (StageBounds& stage : bounds) {
    all.insert(all.end(), stage.bounds.begin(), stage.bounds.end());
    groups_.merge(stage.groups);
    num_fitting_ += stage.num_fitting;
    least_bytes_ = std::min(least_bytes_, stage.least_bytes);
  }
  return all;
}

// Returns bytes of weights, gradients and optimizer state only, as the mean over stages.
double PointEstimates::weight_bytes(const SearchPoint& p) const {
  const Degrees& d = p.degrees;
  const double elements =
      static_cast<double>(count_parameters(model_).total) / static_cast<double>(d.pp * d.tp);
  const bool is_full = keeps_full_gradients(p.sharding, p.grad_store, d, p.num_microbatches);
  price::ElementBytes bytes = bytes_;
  bytes.has_codes = plans_codes(p.linear, machine_);
  return price::state_bytes(elements, bytes,
                            {.owners = p.sharding == "ddp" ? 1 : owners_of(p),
                             .of_gradients = !is_full,
                             .of_copies = p.sharding == "fsdp"});
}

PointEstimates::StageBounds PointEstimates::bounds_of_stage(
    const std::vector<const SearchPoint*>& points) {
  StageBounds stage;
  Probes& probes = probes_.at(stage_key(*points[0]));
  try {
    probes.whole = probe(*points[0], false);
  } catch (const Error& e) {
    probes.error = e.what();  // a mesh that leaves a rank without a head, a row or a token
    return stage;
  }
  const price::StageCosts& costs = *probes.whole;
  std::map<const price::PipelineShape*, size_t> by_shape;  // into bounds
  for (const SearchPoint* p : points) {
    PointEstimate bound{.point = p, .least_bytes = weight_bytes(*p)};
    const price::PipelineShape* shape = nullptr;
    if (p->degrees.pp > 1) {
      shape = shapes_.outline(*p);
      if (shape == nullptr) continue;
      if (!shape->is_split) {
        bound.least_bytes = price::least_bytes(
            costs, *shape, price::least_held_bytes(costs, *shape), owners_of(*p));
      }
    } else {
      bound.least_bytes += kSurelySaved * price::saved_bytes(costs, all_);
    }
    if (bound.least_bytes > limit_) {
      stage.least_bytes = std::min(stage.least_bytes, bound.least_bytes);
      continue;
    }
    ++stage.num_fitting;
    if (shape == nullptr) {
      const price::DataSpread spread = spread_of(p->degrees, costs, machine_, work_);
      bound.seconds = price::least_flat_seconds(
          costs, all_, static_cast<int>(p->num_microbatches),
          price::buckets_of(costs, spread, spread.groups.front(), machine_));
      stage.bounds.push_back(bound);
      continue;
    }
    const auto [at, is_new] = by_shape.try_emplace(shape, stage.bounds.size());
    if (is_new) {
      bound.seconds = price::least_seconds(costs, *shape);
      stage.bounds.push_back(bound);
    }
    PointEstimate& of_all = stage.bounds[at->second];
    of_all.least_bytes = std::min(of_all.least_bytes, bound.least_bytes);
    stage.groups[of_all.point].push_back(p);
  }
  return stage;
}

std::vector<PointEstimate> PointEstimates::look_closer(const PointEstimate& estimate) {
  const SearchPoint& point = *estimate.point;
  PointEstimate closer = estimate;
  closer.grain = Grain::kStep;
  try {
    if (point.degrees.pp == 1) {
      closer.seconds = flat_seconds(point);
    } else if (estimate.grain == Grain::kBound) {
      return run_items(point);
    } else {
      const price::PipelineShape& shape = shapes_.scheduled(point);
      const price::StageCosts& costs = costs_of(point, shape.is_split);
      closer.seconds = price::estimate_pipeline(
          costs, shape, spread_of(point.degrees, costs, machine_, work_), machine_);
    }
  } catch (const Error&) {
    return {};  // a stage that cannot be planned
  }
  return {closer};
}

std::vector<PointEstimate> PointEstimates::run_items(const SearchPoint& first) {
  const price::PipelineShape& shape = shapes_.scheduled(first);
  const price::StageCosts& costs = costs_of(first, shape.is_split);
  const std::vector<double> held = price::held_bytes(costs, shape);
  std::vector<PointEstimate> closer;
  std::optional<double> items_s;
  for (const SearchPoint* p : groups_.at(&first)) {
    PointEstimate estimate{.point = p,
                           .least_bytes = price::least_bytes(costs, shape, held, owners_of(*p)),
                           .grain = Grain::kItems};
    if (estimate.least_bytes <= limit_) {
      const price::DataSpread spread = spread_of(p->degrees, costs, machine_, work_);
      if (!items_s) items_s = price::estimate_items(costs, shape, spread, machine_);
      estimate.seconds = *items_s + price::least_of_ends(costs, shape, spread, machine_);
    }
    closer.push_back(estimate);
  }
  return closer;
}

double PointEstimates::flat_seconds(const SearchPoint& point) const {
  const Config config =
      config_of(point, request_.config, request_.config.training.global_batch_size);
  return tokamak::flat_seconds(
      model_, priced_shape(config, point.linear, machine_, model_, {.degrees = point.degrees}),
      target_, machine_, price_options(point.linear, machine_));
}

int PointEstimates::num_probes() const {
  int num = 0;
  for (const auto& [key, probes] : probes_) num += (probes.whole ? 1 : 0) + (probes.split ? 1 : 0);
  return num;
}

const price::StageCosts& PointEstimates::costs_of(const SearchPoint& point, bool split) {
  Probes& probes = probes_.at(stage_key(point));
  if (!split) return *probes.whole;
  std::call_once(probes.once, [&] { probes.split = probe(point, true); });
  return *probes.split;
}

// Plans one microbatch on a mesh without pipeline or data parallelism; the probe makes its own
// split.
price::StageCosts PointEstimates::probe(const SearchPoint& point, bool split) const {
  SearchPoint flat = point;
  flat.degrees = {.cp = point.degrees.cp, .tp = point.degrees.tp};
  const Config one = config_of(flat, request_.config, flat.microbatch);
  return probe_stages(
      model_, priced_shape(one, point.linear, machine_, model_, {.degrees = flat.degrees}), split,
      target_, machine_, price_options(point.linear, machine_), request_.num_gpus);
}

}  // namespace tokamak
