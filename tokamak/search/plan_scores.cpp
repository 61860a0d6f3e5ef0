#include "tokamak/search/plan_scores.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <tuple>

#include "tokamak/core/bytes.h"
#include "tokamak/core/error.h"
#include "tokamak/core/in_parallel.h"
#include "tokamak/price/machine/device_spread.h"
#include "tokamak/price/run/priced_run.h"
#include "tokamak/price/run/stage_probe.h"
#include "tokamak/run/run_of_config.h"
#include "tokamak/search/mesh_spread.h"

namespace tokamak {
namespace {

using price::ClosedForm;

// What a stage costs depends on these alone; data parallelism stands at the ends of a step.
using StageKey = std::tuple<int64_t, int64_t, int64_t, RecomputeChoice, price::Precision>;

StageKey stage_key(const SearchPoint& p) {
  return {p.degrees.tp, p.degrees.cp, p.microbatch, p.recompute, p.linear};
}

// Points that share all that is kept: a pipeline and its costs, or a mesh without one.
struct Group {
  std::vector<Scored> points;  // `form` is what they take at least
  double least_s = 0.0;
};

// Of a pipeline, or of a mesh without one and its sharding.
using GroupKey =
    std::tuple<StageKey, int64_t, std::string, int, int, int64_t, int64_t, std::string>;

GroupKey group_key(const SearchPoint& p) {
  const Degrees& d = p.degrees;
  if (d.pp > 1) return {stage_key(p), d.pp, p.schedule, p.layers_per_stage, p.ends_weigh, 0, 0, ""};
  return {stage_key(p),    1, "", p.num_microbatches == 1 ? 1 : 0, 0, d.dp_replicate, d.dp_shard,
          sharding_text(p)};
}

// At points that share a stage's costs.
struct Look {
  std::map<GroupKey, Group> groups;
  double least_bytes = std::numeric_limits<double>::infinity();  // of those that do not fit
  std::string error;  // why their mesh has no plan, or empty
};

// Of what stages save for their backward, one rank alone may hold less.
constexpr double kSurelySaved = 0.8;

// A pipeline whose works alone take so much more than is enough is left out.
constexpr double kSurelyMore = 1.01;

double held_for_backward(const price::StageCosts& costs, const price::StageModules& stage) {
  double bytes = 0.0;
  for (const auto& [kind, size] : costs.held) {
    if (kind.from == PipelineItemKind::kForward && kind.to == PipelineItemKind::kBackwardInput)
      bytes += size(stage);
  }
  return bytes;
}

class Scorer {
 public:
  Scorer(const SearchRequest& request, size_t num_wanted)
      : request_(request),
        machine_(price::slowest_of(request.machine, request.num_gpus)),
        model_(spec_of(request.config)),
        num_wanted_(num_wanted),
        bytes_(element_bytes(
            priced_shape(config_of({}, request.config, 1), model_, {.degrees = {}}).training)),
        work_(causal_work(distribute_options(request.config, {}, 0))),
        limit_(memory_limit(request.machine)),
        shapes_(static_cast<int>(model_.num_layers)) {}

  Scores run(const std::vector<SearchPoint>& points) {
    std::map<StageKey, std::vector<const SearchPoint*>> by_stage;
    double least = 0.0;
    for (const SearchPoint& p : points) {
      const double bytes = weight_bytes(p);
      least = least == 0.0 ? bytes : std::min(least, bytes);
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
    std::vector<Look> looks(stages.size());
    in_parallel(stages.size(), request_.num_threads,
                [&](size_t s) { looks[s] = look_at(*stages[s]); });
    const bool has_any = std::any_of(looks.begin(), looks.end(),
                                     [](const Look& look) { return look.error.empty(); });
    TOK_REQUIRE(has_any, "--search: {}", looks.front().error);
    std::vector<const Group*> groups;
    for (const Look& look : looks) {
      for (const auto& [key, group] : look.groups) groups.push_back(&group);
      scores_.least_bytes = std::min(scores_.least_bytes, look.least_bytes);
    }
    score(groups);
    sort();
    for (auto& [key, probe] : probes_)
      scores_.num_probes += (probe.whole ? 1 : 0) + (probe.split ? 1 : 0);
    return std::move(scores_);
  }

 private:
  struct Probes {
    std::optional<price::StageCosts> whole;
    std::once_flag once;
    std::optional<price::StageCosts> split;
  };

  // Weights, gradients and optimizer alone, of the stages' mean.
  double weight_bytes(const SearchPoint& p) const {
    const Degrees& d = p.degrees;
    const double elements =
        static_cast<double>(count_parameters(model_).total) / static_cast<double>(d.pp * d.tp);
    const bool is_full = keeps_full_gradients(p.sharding, p.grad_store, d, p.num_microbatches);
    return price::state_bytes(
        elements, bytes_,
        {.owners = p.sharding == "ddp" ? 1 : static_cast<int>(d.dp_shard * d.cp),
         .of_gradients = !is_full,
         .of_copies = p.sharding == "fsdp"});
  }

  // The groups of points that share a stage's costs, with bounds from stages of whole backwards.
  Look look_at(const std::vector<const SearchPoint*>& points) {
    Look look;
    Probes& probes = probes_.at(stage_key(*points[0]));
    try {
      probes.whole = probe(*points[0], false);
    } catch (const Error& e) {
      look.error = e.what();  // a mesh that leaves a rank without a head, a row or a token
      return look;
    }
    const price::StageCosts& costs = *probes.whole;
    const price::StageModules all{
        .layers = static_cast<int>(model_.num_layers), .has_embedding = true, .has_head = true};
    const price::StageSeconds& seconds = costs.places.front().fast;
    const double work_s = least_share() * (seconds.forward(all) + seconds.backward(all));
    for (const SearchPoint* p : points) {
      ClosedForm least{.bytes = weight_bytes(*p)};
      const double share_s = work_s / static_cast<double>(p->degrees.pp);
      if (p->degrees.pp == 1) {
        least.bytes += kSurelySaved * held_for_backward(costs, all);
        // Below 16 bits messages may be narrower than these costs have them.
        if (p->sharding != "ddp" && p->linear == price::Precision::kBf16) {
          least.seconds =
              price::least_flat_seconds(costs, all, static_cast<int>(p->num_microbatches),
                                        spread_of(p->degrees, costs, machine_, work_), machine_);
        }
      } else {
        const price::DataSpread spread = spread_without_groups(p->degrees, costs, machine_);
        const price::PipelineShape* shape = shapes_.outline(*p);
        if (shape == nullptr) continue;
        // A split backward takes no less than a whole one.
        least.seconds = least_share() * price::least_seconds(costs, *shape, spread.hop_s);
        if (!shape->is_split) least.bytes = price::least_bytes(costs, *shape, spread);
      }
      least.seconds = std::max(least.seconds, share_s * static_cast<double>(p->num_microbatches));
      if (least.bytes > limit_) {
        look.least_bytes = std::min(look.least_bytes, least.bytes);
        continue;
      }
      Group& group = look.groups[group_key(*p)];
      group.least_s = group.points.empty() ? least.seconds : std::min(group.least_s, least.seconds);
      group.points.push_back({p, least});
    }
    return look;
  }

  // Of what a probe has for one stage: it saves activations in slots, from where kernels gather
  // again what without a pipeline copy engines may.
  double least_share() const {
    const price::Software& software = machine_.software;
    if (!request_.config.activation_checkpoint.gather_again) return 1.0;
    return std::min(1.0, software.copy_engine_slowdown / software.compute_slowdown);
  }

  // The most promising first, until none that is left can be among the best. A batch has a fixed
  // size, so that the result does not depend on the number of threads.
  void score(std::vector<const Group*>& groups) {
    constexpr size_t kBatch = 16;
    std::stable_sort(groups.begin(), groups.end(),
                     [](const Group* a, const Group* b) { return a->least_s < b->least_s; });
    for (size_t begin = 0; begin < groups.size();) {
      const double enough = seconds_of_worst_leader();
      size_t end = begin;
      while (end < groups.size() && end - begin < kBatch && groups[end]->least_s <= enough) ++end;
      if (end == begin) return;
      std::vector<std::vector<Scored>> scored(end - begin);
      in_parallel(scored.size(), request_.num_threads,
                  [&](size_t i) { scored[i] = score_group(*groups[begin + i], enough); });
      for (const std::vector<Scored>& group : scored) keep(group);
      begin = end;
    }
  }

  void keep(const std::vector<Scored>& group) {
    for (const Scored& s : group) {
      scores_.least_bytes = std::min(scores_.least_bytes, s.form.bytes);
      if (s.form.bytes > limit_) continue;
      scores_.fitting.push_back(s);
      is_sorted_ = false;
    }
  }

  void sort() {
    if (is_sorted_) return;
    std::sort(scores_.fitting.begin(), scores_.fitting.end(), [](const Scored& a, const Scored& b) {
      return std::pair(a.form.seconds, a.point) < std::pair(b.form.seconds, b.point);
    });
    is_sorted_ = true;
  }

  double seconds_of_worst_leader() {
    sort();
    const std::vector<const Scored*> all = leaders(scores_.fitting);
    if (all.size() < num_wanted_) return std::numeric_limits<double>::infinity();
    return all[num_wanted_ - 1]->form.seconds;
  }

  // Points of one group that may take no more than `enough`.
  std::vector<Scored> score_group(const Group& group, double enough) {
    try {
      return group.points[0].point->degrees.pp == 1 ? score_flat(group.points)
                                                    : score_pipeline(group.points, enough);
    } catch (const Error&) {
      return {};
    }
  }

  std::vector<Scored> score_flat(const std::vector<Scored>& points) const {
    const SearchPoint& first = *points[0].point;
    const Config config =
        config_of(first, request_.config, request_.config.training.global_batch_size);
    const price::FlatCosts costs =
        probe_flat(model_, priced_shape(config, model_, {.degrees = first.degrees}), target(),
                   machine_, {.linear = first.linear});
    const ClosedForm form = price::closed_form(costs, static_cast<int>(model_.num_layers));
    std::vector<Scored> scored = points;
    for (Scored& s : scored) s.form = form;
    return scored;
  }

  std::vector<Scored> score_pipeline(const std::vector<Scored>& points, double enough) {
    const SearchPoint& first = *points[0].point;
    const price::PipelineShape& outline = *shapes_.outline(first);
    const price::StageCosts& costs = costs_of(first, outline.is_split);
    // All meshes of one pipeline have their next stage as far away.
    const price::PipelineRanks ranks = pipeline_ranks(first.degrees, costs, machine_, work_);
    const double least_hop_s = *std::min_element(ranks.hops_s.begin(), ranks.hops_s.end());
    if (price::least_seconds(costs, outline, least_hop_s) > enough) return {};
    std::optional<price::PipelineUse> use;
    std::vector<Scored> scored;
    for (const Scored& s : points) {
      const Degrees& degrees = s.point->degrees;
      const double least =
          price::least_bytes(costs, outline, spread_without_groups(degrees, costs, machine_));
      if (least > limit_) {
        scored.push_back({s.point, {.seconds = s.form.seconds, .bytes = least}});
        continue;
      }
      if (!use) {
        const price::PipelineShape& scheduled = shapes_.scheduled(first);
        if (price::least_seconds(costs, scheduled, ranks, machine_) > kSurelyMore * enough)
          return scored;
        use = price::pipeline_use(costs, scheduled, ranks, machine_);
      }
      const price::DataSpread spread = spread_of(degrees, costs, machine_, work_);
      scored.push_back({s.point, price::closed_form(costs, outline, *use, spread, machine_)});
    }
    return scored;
  }

  const price::StageCosts& costs_of(const SearchPoint& point, bool split) {
    Probes& probes = probes_.at(stage_key(point));
    if (!split) return *probes.whole;
    std::call_once(probes.once, [&] { probes.split = probe(point, true); });
    return *probes.split;
  }

  Target target() const {
    return {.backend = "gpu",
            .arch = machine_.device.arch,
            .devices_per_host = machine_.storage.devices_per_node,
            .deterministic = request_.config.debug.deterministic};
  }

  // One microbatch on a mesh without pipeline or data parallelism: the probe cuts its own.
  price::StageCosts probe(const SearchPoint& point, bool split) const {
    SearchPoint flat = point;
    flat.degrees = {.cp = point.degrees.cp, .tp = point.degrees.tp};
    const Config one = config_of(flat, request_.config, flat.microbatch);
    return probe_stages(model_, priced_shape(one, model_, {.degrees = flat.degrees}), split,
                        target(), machine_, {.linear = point.linear}, request_.num_gpus);
  }

  const SearchRequest& request_;
  const price::Machine machine_;  // as the slowest of all devices
  ModelSpec model_;
  size_t num_wanted_;
  price::ElementBytes bytes_;
  CausalWork work_;
  double limit_;
  PipelineShapes shapes_;
  std::map<StageKey, Probes> probes_;
  Scores scores_;
  bool is_sorted_ = true;
};

}  // namespace

Scores score_points(const SearchRequest& request, const std::vector<SearchPoint>& points,
                    size_t num_wanted) {
  return Scorer(request, num_wanted).run(points);
}

std::vector<const Scored*> leaders(const std::vector<Scored>& scored) {
  using Kind = std::tuple<int64_t, int64_t, int64_t, std::string, int64_t, RecomputeChoice,
                          price::Precision>;
  std::set<Kind> seen;
  std::vector<const Scored*> chosen;
  for (const Scored& s : scored) {
    const SearchPoint& p = *s.point;
    const Degrees& d = p.degrees;
    const std::string how = d.pp > 1 ? p.schedule : sharding_text(p);
    if (seen.insert({d.pp, d.cp, d.tp, how, p.microbatch, p.recompute, p.linear}).second)
      chosen.push_back(&s);
  }
  return chosen;
}

}  // namespace tokamak
