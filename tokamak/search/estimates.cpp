#include "tokamak/search/estimates.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "tokamak/core/bytes.h"
#include "tokamak/core/error.h"
#include "tokamak/core/in_parallel.h"
#include "tokamak/parallel/distribute.h"
#include "tokamak/pipeline/schedules.h"
#include "tokamak/pipeline/stage_split.h"
#include "tokamak/price/machine/device_spread.h"
#include "tokamak/price/run/slowest_place.h"
#include "tokamak/run/run_of_config.h"

namespace tokamak {
namespace {

// A quantity that grows with the number of layers.
struct Line {
  double base = 0.0;
  double layer = 0.0;

  double operator()(double layers) const { return base + layer * layers; }
};

// What a rank of some cp and tp pays for a microbatch and a step, without data parallelism.
struct Costs {
  Line microbatch_s;  ///< forward and backward
  Line ends_s;        ///< of a step besides its microbatches, with dp_shard 1
  Line saved_bytes;   ///< from the forward to the backward; `base` with scratch
};

using CostKey = std::tuple<int64_t, int64_t, int64_t, RecomputeChoice, price::Precision>;

CostKey cost_key(const SearchPoint& p) {
  return {p.degrees.tp, p.degrees.cp, p.microbatch, p.recompute, p.linear};
}

// Bytes of one element of a parameter.
struct ElementBytes {
  double master = 4.0;  // and each of its two moments
  double compute = 2.0;
  double gradient = 4.0;
};

struct Stage {
  int layers = 0;
  bool has_embedding = false;
  bool has_head = false;
};

// The stages of one pipeline rank.
struct RankStages {
  Stage all;
  double layers_before = 0.0;  // of the first
  int stages_before = 0;
  int most_layers = 0;  // of one stage
  int in_flight = 1;    // microbatches of any of its stages, forward to the end
};

struct Pipeline {
  bool is_split = false;  // input and weight gradients apart
  std::vector<RankStages> ranks;
};

// Returns nothing if the schedule cannot have such stages of N layers, or refuses the
// microbatches.
std::optional<Pipeline> pipeline_of(const SearchPoint& point, int num_layers) {
  const auto p = static_cast<int>(point.degrees.pp);
  if (p == 1)
    return Pipeline{.ranks = {{.all = {num_layers, true, true}, .most_layers = num_layers}}};
  SplitRequest request{.num_layers = num_layers,
                       .num_ranks = p,
                       .schedule = point.schedule,
                       .first_stage_less_layers = point.ends_weigh,
                       .last_stage_less_layers = point.ends_weigh};
  if (point.layers_per_stage > 0) request.layers_per_stage = point.layers_per_stage;
  try {
    const StageSplit split = split_stages(request);
    const auto m = static_cast<int>(point.num_microbatches);
    // More microbatches only repeat.
    const PipelineSchedule schedule =
        make_schedule(point.schedule, p, split.num_stages / p, std::min(m, 2 * p + m % p));
    Pipeline pipeline{.is_split = schedule.splits_backward()};
    std::vector<int> layers(split.num_stages, 0);
    for (const int s : split.stage_of_layer) ++layers[s];
    const std::vector<int> in_flight = chunks_in_flight(schedule);
    for (int r = 0; r < p; ++r) {
      const std::vector<int> stages = schedule.stages_of(r);
      RankStages rank{.stages_before = stages.front(), .in_flight = in_flight[r]};
      for (int s = 0; s < stages.front(); ++s) rank.layers_before += layers[s];
      for (const int s : stages) {
        rank.all.layers += layers[s];
        rank.all.has_embedding |= s == split.embedding_stage;
        rank.all.has_head |= s == split.head_stage;
        rank.most_layers = std::max(rank.most_layers, layers[s]);
      }
      pipeline.ranks.push_back(rank);
    }
    return pipeline;
  } catch (const Error&) {
    return std::nullopt;  // too few layers
  }
}

class Estimator {
 public:
  explicit Estimator(const SearchRequest& request)
      : request_(request),
        machine_(price::slowest_of(request.machine, request.num_gpus)),
        target_(priced_target(request.config, machine_)),
        model_(spec_of(request.config)),
        limit_(memory_limit(request.machine)) {
    const RunShape shape = shape_of(config_of({}, request.config, 1), model_, {.degrees = {}});
    work_ = causal_work(shape.distribute);
    const auto size = [](DType dtype) { return static_cast<double>(size_of(dtype)); };
    bytes_.master = size(shape.training.master);
    bytes_.compute = size(shape.training.compute);
    bytes_.gradient = size(gradient_dtype(shape.training.compute));
    const double some = elements_of(1);
    elements_.layer = elements_of(2) - some;
    elements_.base = some - elements_.layer;
  }

  Estimates run(const std::vector<SearchPoint>& points) {
    std::map<CostKey, std::vector<const SearchPoint*>> by_cost;
    Estimates all;
    for (const SearchPoint& p : points) {
      const Stage mean{.layers = static_cast<int>(model_.num_layers / p.degrees.pp)};
      const double bytes = state_bytes(p, mean);
      all.least_bytes = std::min(all.least_bytes, bytes);
      if (bytes <= limit_) by_cost[cost_key(p)].push_back(&p);
    }
    TOK_REQUIRE(
        !by_cost.empty(),
        "--search: weights and optimizer take at least {:.1f} GiB of a device, which has {:.1f}: "
        "wanted more --gpus or a smaller model",
        all.least_bytes / kGiB, limit_ / kGiB);
    all.least_bytes = std::numeric_limits<double>::infinity();
    std::vector<const std::vector<const SearchPoint*>*> groups;
    for (const auto& [key, members] : by_cost) groups.push_back(&members);
    std::vector<std::vector<PointEstimate>> estimates(groups.size());
    std::vector<std::string> errors(groups.size());
    in_parallel(groups.size(), request_.num_threads, [&](size_t g) {
      try {
        estimates[g] = estimates_of(*groups[g]);
      } catch (const Error& e) {
        errors[g] = e.what();  // a mesh that leaves a rank without a head, a row or a token
      }
    });
    for (size_t g = 0; g < groups.size(); ++g) {
      all.num_relatives += errors[g].empty() ? 2 : 0;
      for (const PointEstimate& e : estimates[g]) {
        if (e.bytes <= limit_) all.fitting.push_back(e);
        if (e.bytes > limit_) all.least_bytes = std::min(all.least_bytes, e.bytes);
      }
    }
    TOK_REQUIRE(all.num_relatives > 0, "--search: {}", errors.front());
    std::sort(all.fitting.begin(), all.fitting.end(),
              [](const PointEstimate& a, const PointEstimate& b) {
                return std::tie(a.seconds, a.point) < std::tie(b.seconds, b.point);
              });
    return all;
  }

 private:
  double elements_of(int64_t layers) const {
    return static_cast<double>(count_parameters(with_layers(layers)).total);
  }

  ModelSpec with_layers(int64_t layers) const {
    ModelSpec model = model_;
    model.num_layers = layers;
    if (!model.attention.windows.empty())
      model.attention.windows.resize(static_cast<size_t>(layers));
    return model;
  }

  double elements_of(const Stage& s, int64_t tp) const {
    const double end = elements_.base * (model_.tied ? 1.0 : 0.5);
    const int ends = (s.has_embedding ? 1 : 0) + (s.has_head ? 1 : 0);
    return (elements_.layer * s.layers + std::min(end * ends, elements_.base)) /
           static_cast<double>(tp);
  }

  // Returns the bytes of masters, moments, gradients and compute copies.
  double state_bytes(const SearchPoint& p, const Stage& stage) const {
    const Degrees& d = p.degrees;
    const double elements = elements_of(stage, d.tp);
    const auto owners = static_cast<double>(d.dp_shard * d.cp);  // 1 under ddp
    const bool is_full = keeps_full_gradients(p.sharding, p.grad_store, d, p.num_microbatches);
    const double kept = plans_low(p.linear, machine_) ? 1.0 : bytes_.compute;
    const bool has_copies = p.sharding != "fsdp" && (owners > 1.0 || kept != bytes_.master);
    return elements *
           (3.0 * bytes_.master / owners + bytes_.gradient * (is_full ? 1.0 : 1.0 / owners) +
            (has_copies ? kept : 0.0));
  }

  // Plans and prices the model with two depths on one stage without data parallelism.
  Costs costs_of(const SearchPoint& point) const {
    SearchPoint flat{.degrees = {.cp = point.degrees.cp, .tp = point.degrees.tp},
                     .microbatch = point.microbatch,
                     .num_microbatches = 2,
                     .recompute = point.recompute,
                     .sharding = "zero1",
                     .linear = point.linear};
    const Config config = config_of(flat, request_.config, 2 * point.microbatch);
    const int64_t few = std::max<int64_t>(2, model_.attention.full_every);

    struct Found {
      double microbatch_s, ends_s, saved_bytes;
    };

    const auto find = [&](int64_t layers) {
      const ModelSpec model = with_layers(layers);
      RunShape shape =
          priced_shape(config, flat.linear, machine_, model, {.degrees = flat.degrees});
      shape.validation.reset();
      // A relative has fewer layers than may be left out.
      shape.distribute.low_precision = shape.distribute.low_precision.in_all_blocks();
      shape.distribute.rank = first_of_busiest(shape.distribute.mesh, work_);
      const PlannedRun run(model, shape, target_);
      price::PriceOptions options = price_options(flat.linear, machine_);
      options.device_graphs = run.plan().device_graphs;
      options.block_weight = static_cast<double>(model_.num_layers) / static_cast<double>(layers);
      const price::PricedRank rank{.plan = &run.plan()};
      const auto seconds = [&](int num_microbatches) {
        return price::price_step({&rank, 1}, num_microbatches, machine_, options).seconds;
      };
      const double two = seconds(2);
      const double one = (seconds(4) - two) / 2.0;
      const Stage all{.layers = static_cast<int>(layers), .has_embedding = true, .has_head = true};
      return Found{one, two - 2.0 * one,
                   static_cast<double>(run.peak_bytes()) - state_bytes(flat, all)};
    };
    const Found a = find(few);
    const Found b = find(2 * few);
    const auto line = [&](double Found::*value) {
      const double layer = (b.*value - a.*value) / static_cast<double>(few);
      return Line{.base = a.*value - layer * static_cast<double>(few), .layer = layer};
    };
    return {.microbatch_s = line(&Found::microbatch_s),
            .ends_s = line(&Found::ends_s),
            .saved_bytes = line(&Found::saved_bytes)};
  }

  std::vector<PointEstimate> estimates_of(const std::vector<const SearchPoint*>& points) const {
    const Costs costs = costs_of(*points.front());
    using Key = std::tuple<int64_t, std::string, int, int, int64_t>;
    std::map<Key, std::optional<Pipeline>> pipelines;
    std::vector<PointEstimate> estimates;
    for (const SearchPoint* p : points) {
      const auto [at, is_new] = pipelines.try_emplace(
          {p->degrees.pp, p->schedule, p->layers_per_stage, p->ends_weigh, p->num_microbatches});
      if (is_new) at->second = pipeline_of(*p, static_cast<int>(model_.num_layers));
      if (!at->second) continue;
      PointEstimate e{.point = p, .bytes = bytes_of(*p, *at->second, costs)};
      if (e.bytes <= limit_) e.seconds = seconds_of(*p, *at->second, costs);
      estimates.push_back(e);
    }
    return estimates;
  }

  double bytes_of(const SearchPoint& p, const Pipeline& pipeline, const Costs& costs) const {
    double most = 0.0;
    for (const RankStages& rank : pipeline.ranks) {
      const double saved = rank.in_flight * costs.saved_bytes.layer * rank.most_layers;
      const double ends = rank.all.has_head ? costs.saved_bytes.base : 0.0;
      most = std::max(most, state_bytes(p, rank.all) + saved + std::max(0.0, ends));
    }
    return most;
  }

  // The path to the busiest rank, its work, the path back, and what data parallelism adds.
  double seconds_of(const SearchPoint& p, const Pipeline& pipeline, const Costs& costs) const {
    const auto m = static_cast<double>(p.num_microbatches);
    const DataSeconds data = data_seconds(p);
    const double hop = pipeline.ranks.size() > 1 ? hop_seconds(p) : 0.0;
    double longest = 0.0;
    for (const RankStages& rank : pipeline.ranks) {
      double work = costs.microbatch_s.layer * rank.all.layers;
      if (rank.all.has_head) work += std::max(0.0, costs.microbatch_s.base);
      const double path =
          costs.microbatch_s.layer * rank.layers_before + 2 * hop * rank.stages_before;
      // Where gradients are apart, only those of weights may be left when the last microbatch
      // passes.
      const double seconds = m * work + path * (pipeline.is_split ? 1.0 / 3.0 : 1.0);
      longest = std::max(longest, seconds + data.exposed(p, rank.all.layers, work));
    }
    const auto layers = static_cast<double>(pipeline.ranks.front().all.layers);
    return longest + costs.ends_s(layers) / static_cast<double>(p.degrees.dp_shard);
  }

  // Of one layer.
  struct DataSeconds {
    double gather = 0.0;
    double reduce = 0.0;

    double exposed(const SearchPoint& p, int layers, double work) const {
      if (p.degrees.pp > 1) return gather + reduce;
      const auto m = static_cast<double>(p.num_microbatches);
      const double gathers = gather * layers;
      const double reduces = reduce * layers;
      const double first = std::max(gather, gathers - work / 3.0);
      const double last = std::max(reduce, reduces - work * 2.0 / 3.0);
      const bool gathers_again = p.sharding == "fsdp";
      const double each = (gathers_again ? 2.0 * gathers : 0.0) +
                          (p.grad_store == "sharded" || p.sharding == "zero2" ? reduces : 0.0);
      return first + last + (m - 1.0) * std::max(0.0, each - work);
    }
  };

  DataSeconds data_seconds(const SearchPoint& p) const {
    const Degrees& d = p.degrees;
    const auto tp = static_cast<int>(d.tp);
    const auto owners = static_cast<int>(d.dp_shard * d.cp);
    const auto replicas = static_cast<int>(d.dp_replicate);
    const double elements = elements_.layer / static_cast<double>(d.tp);
    DataSeconds data;
    const auto sum = [&](price::Collective kind, double count, const price::GroupLayout& group) {
      return price::communication_seconds({.kind = kind,
                                           .bytes = count * bytes_.gradient,
                                           .sums_gradients = bytes_.gradient == sizeof(float)},
                                          group, machine_);
    };
    if (owners > 1) {
      const price::GroupLayout group = price::strided_layout(owners, tp, machine_);
      data.gather = price::communication_seconds(
          {.kind = price::Collective::kAllGather, .bytes = elements * bytes_.compute}, group,
          machine_);
      data.reduce = sum(price::Collective::kReduceScatter, elements, group);
    }
    if (replicas > 1)
      data.reduce += sum(price::Collective::kAllReduce, elements / owners,
                         price::strided_layout(replicas, tp * owners, machine_));
    return data;
  }

  double hop_seconds(const SearchPoint& p) const {
    const Degrees& d = p.degrees;
    const int ends[] = {0, static_cast<int>(d.world() / d.pp)};
    const double bytes =
        static_cast<double>(p.microbatch * request_.config.training.seq_len * model_.dim) /
        static_cast<double>(d.cp * d.tp) * bytes_.compute;
    return price::communication_seconds({.kind = price::Collective::kSendRecv, .bytes = bytes},
                                        price::layout_of(ends, machine_), machine_);
  }

  const SearchRequest& request_;
  const price::Machine machine_;  // as the slowest of all devices
  const Target target_;
  const ModelSpec model_;
  const double limit_;
  CausalWork work_ = CausalWork::kEven;
  ElementBytes bytes_;
  Line elements_;  // `base`: embedding and head
};

}  // namespace

Estimates estimate_points(const SearchRequest& request, const std::vector<SearchPoint>& points) {
  return Estimator(request).run(points);
}

}  // namespace tokamak
