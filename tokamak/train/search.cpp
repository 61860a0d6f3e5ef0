#include "tokamak/train/search.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <tuple>

#include <fmt/format.h>

#include "tokamak/core/error.h"
#include "tokamak/train/flops.h"
#include "tokamak/train/options.h"
#include "tokamak/train/stage_probe.h"

namespace tokamak {
namespace {

using price::ClosedForm;

// Runs work(0) ... work(count - 1), in any order. The first error by index is thrown.
void in_parallel(size_t count, int num_threads, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next{0};
  std::vector<std::exception_ptr> errors(count);
  const auto run = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    }
  };
  std::vector<std::thread> threads;
  for (int t = 1; t < num_threads; ++t) threads.emplace_back(run);
  run();
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

bool is_split(const std::string& schedule) {
  return schedule == "InterleavedZeroBubble" || schedule == "ZBVZeroBubble";
}

// What a stage costs depends on these alone; data parallelism stands at the ends of a step.
using StageKey = std::tuple<int64_t, int64_t, int64_t, RecomputeChoice, price::Precision>;

StageKey stage_key(const SearchPoint& p) {
  return {p.degrees.tp, p.degrees.cp, p.microbatch, p.recompute, p.linear};
}

// A probe of its own: of split stages, or of a mesh without pipeline.
using SecondKey = std::tuple<StageKey, bool, int64_t, int64_t, bool, std::string>;

SecondKey second_key(const SearchPoint& p) {
  const Degrees& d = p.degrees;
  if (d.pp > 1) return {stage_key(p), true, 0, 0, false, ""};
  return {stage_key(p), false, d.dp_replicate, d.dp_shard, p.num_microbatches == 1, p.sharding};
}

struct Scored {
  const SearchPoint* point = nullptr;
  ClosedForm form;
};

class Search {
 public:
  explicit Search(const SearchRequest& request)
      : request_(request), machine_(request.machine), model_(spec_of(request.config)) {}

  SearchResult run() {
    const SearchBounds bounds = bounds_of();
    const std::vector<SearchPoint> points = search_points(model_, bounds);
    TOK_REQUIRE(!points.empty(),
                "--search: no mesh of {} devices divides training.global_batch_size = {}",
                request_.num_gpus, bounds.global_batch);
    result_.num_points = std::ssize(points);
    const auto seq_len = static_cast<double>(bounds.seq_len);
    result_.tokens_per_step = static_cast<double>(bounds.global_batch) * seq_len;
    result_.flops_per_token = flops_per_token(flops_shape(model_, bounds.seq_len));
    result_.memory_limit_bytes = machine_.device.memory_bytes - machine_.device.reserve_bytes;
    price_finalists(score(points));
    return std::move(result_);
  }

 private:
  SearchBounds bounds_of() const {
    const TrainingConfig& t = request_.config.training;
    TOK_REQUIRE(t.global_batch_size > 0,
                "--search: training.global_batch_size = {}: wanted the batch that all plans share",
                t.global_batch_size);
    constexpr int64_t kLargestTp = 16;
    int64_t largest_tp = 1;
    for (const price::Level& level : machine_.levels) {
      if (level.num_devices > 0 && level.num_devices <= 72)
        largest_tp = std::max<int64_t>(largest_tp, level.num_devices);
    }
    return {.num_gpus = request_.num_gpus,
            .global_batch = t.global_batch_size,
            .seq_len = t.seq_len,
            .largest_tp = std::min(largest_tp, kLargestTp),
            .precisions = request_.precisions};
  }

  // Weights, gradients and optimizer alone, of the stages' mean.
  double least_bytes(const SearchPoint& p) const {
    const Degrees& d = p.degrees;
    const double elements =
        static_cast<double>(count_parameters(model_).total) / static_cast<double>(d.pp * d.tp);
    const auto owners = static_cast<double>(p.sharding == "ddp" ? 1 : d.dp_shard * d.cp);
    const bool is_fsdp = p.sharding == "fsdp";
    const double copies = is_fsdp ? 0.0 : 2.0;
    const double gradients = is_fsdp && p.num_microbatches == 1 ? 4.0 / owners : 4.0;
    return elements * (12.0 / owners + gradients + copies);
  }

  // Every point that fits and may be among the best, by its closed form.
  std::vector<Scored> score(const std::vector<SearchPoint>& points) {
    std::map<StageKey, std::vector<const SearchPoint*>> by_stage;
    double least = 0.0;
    for (const SearchPoint& p : points) {
      const double bytes = least_bytes(p);
      least = least == 0.0 ? bytes : std::min(least, bytes);
      if (bytes <= result_.memory_limit_bytes) by_stage[stage_key(p)].push_back(&p);
    }
    TOK_REQUIRE(
        !by_stage.empty(),
        "--search: weights and optimizer take at least {:.1f} GB of a device, which has {:.1f}",
        least * 1e-9, result_.memory_limit_bytes * 1e-9);
    std::vector<const std::vector<const SearchPoint*>*> groups;
    for (const auto& [key, members] : by_stage) groups.push_back(&members);
    std::vector<FirstLook> looks(groups.size());
    in_parallel(groups.size(), request_.num_threads,
                [&](size_t g) { looks[g] = look_at(*groups[g]); });
    result_.num_probes = static_cast<int>(groups.size());
    std::map<SecondKey, std::vector<Scored>> open;
    for (FirstLook& look : looks) {
      keep(look.scored);
      for (const Scored& s : look.open) open[second_key(*s.point)].push_back(s);
    }
    score_open(open);
    result_.num_fitting = std::ssize(scored_);
    sort(scored_);
    return std::move(scored_);
  }

  // Points whose stages need no other probe, and bounds of the rest.
  struct FirstLook {
    std::vector<Scored> scored;
    std::vector<Scored> open;  // `form` is what they take at least
  };

  FirstLook look_at(const std::vector<const SearchPoint*>& points) const {
    FirstLook look;
    try {
      const price::StageCosts costs = probe(*points[0], false);
      const price::StageModules all{
          .layers = static_cast<int>(model_.num_layers), .has_embedding = true, .has_head = true};
      const double work_s = costs.forward_s(all) + costs.backward_s(all);
      PipelineShapes shapes(all.layers);
      for (const SearchPoint* p : points) {
        if (p->degrees.pp > 1 && !is_split(p->schedule)) {
          if (const price::PipelineShape* shape = shapes.find(*p))
            look.scored.push_back({p, form_of(*p, costs, *shape, 0.0)});
          continue;
        }
        const double share_s = work_s / static_cast<double>(p->degrees.pp);
        ClosedForm bound{.seconds = share_s * static_cast<double>(p->num_microbatches),
                         .bytes = least_bytes(*p)};
        if (p->degrees.pp == 1) bound.bytes += kSurelySaved * costs.saved(all);
        if (bound.bytes <= result_.memory_limit_bytes) look.open.push_back({p, bound});
      }
    } catch (const Error&) {
      return {};  // a mesh that leaves a rank without a head, a row or a token
    }
    return look;
  }

  // Of what stages save for their backward, one rank alone may hold less.
  static constexpr double kSurelySaved = 0.8;

  // Probes the most promising first, until none that is left can be among the best. A batch has a
  // fixed size, so that the result does not depend on the number of threads.
  void score_open(const std::map<SecondKey, std::vector<Scored>>& open) {
    constexpr size_t kBatch = 16;
    std::vector<std::pair<double, const std::vector<Scored>*>> queue;
    for (const auto& [key, members] : open) {
      double bound = members[0].form.seconds;
      for (const Scored& s : members) bound = std::min(bound, s.form.seconds);
      queue.emplace_back(bound, &members);
    }
    std::stable_sort(queue.begin(), queue.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (size_t begin = 0; begin < queue.size();) {
      const double enough = seconds_of_worst_leader();
      size_t end = begin;
      while (end < queue.size() && end - begin < kBatch && queue[end].first <= enough) ++end;
      if (end == begin) return;
      std::vector<std::vector<Scored>> scored(end - begin);
      in_parallel(scored.size(), request_.num_threads,
                  [&](size_t i) { scored[i] = score_group(*queue[begin + i].second, enough); });
      for (const std::vector<Scored>& group : scored) keep(group);
      result_.num_probes += static_cast<int>(end - begin);
      begin = end;
    }
  }

  void keep(const std::vector<Scored>& group) {
    for (const Scored& s : group) {
      if (result_.least_bytes == 0.0 || s.form.bytes < result_.least_bytes)
        result_.least_bytes = s.form.bytes;
      if (s.form.bytes <= result_.memory_limit_bytes) scored_.push_back(s);
    }
  }

  static void sort(std::vector<Scored>& scored) {
    std::sort(scored.begin(), scored.end(), [](const Scored& a, const Scored& b) {
      return std::pair(a.form.seconds, a.point) < std::pair(b.form.seconds, b.point);
    });
  }

  // Closed forms err by a few percent, so some more than are asked for are priced.
  size_t num_finalists() const { return static_cast<size_t>(request_.num_best + 2); }

  double seconds_of_worst_leader() {
    sort(scored_);
    const std::vector<const Scored*> all = leaders(scored_);
    if (all.size() < num_finalists()) return std::numeric_limits<double>::infinity();
    return all[num_finalists() - 1]->form.seconds;
  }

  // Points of one probe that may take no more than `enough`.
  std::vector<Scored> score_group(const std::vector<Scored>& points, double enough) const {
    const SearchPoint& first = *points[0].point;
    std::vector<Scored> scored;
    try {
      if (first.degrees.pp == 1) {
        const Config config =
            config_of(first, request_.config, request_.config.training.global_batch_size);
        const price::FlatCosts costs =
            probe_flat(model_, shape_of(config, model_, {.degrees = first.degrees}), target(),
                       machine_, first.linear);
        for (const Scored& s : points)
          scored.push_back(
              {s.point, price::closed_form(costs, static_cast<int>(model_.num_layers),
                                           static_cast<int>(s.point->num_microbatches), machine_)});
        return scored;
      }
      const price::StageCosts costs = probe(first, true);
      PipelineShapes shapes(static_cast<int>(model_.num_layers));
      std::map<std::pair<const price::PipelineShape*, double>, double> idle;
      for (const Scored& s : points) {
        if (s.form.seconds > enough) continue;
        const price::PipelineShape* shape = shapes.find(*s.point);
        if (shape == nullptr) continue;
        const double hop_s = spread_of(s.point->degrees, costs, machine_).hop_s;
        const auto [at, is_new] = idle.try_emplace({shape, hop_s});
        if (is_new) at->second = price::split_idle_s(costs, *shape, hop_s);
        scored.push_back({s.point, form_of(*s.point, costs, *shape, at->second)});
      }
    } catch (const Error&) {
      return {};
    }
    return scored;
  }

  Target target() const { return {.backend = "gpu", .arch = machine_.device.arch}; }

  // One microbatch on a mesh without pipeline or data parallelism: the probe cuts its own.
  price::StageCosts probe(const SearchPoint& point, bool split) const {
    SearchPoint flat = point;
    flat.degrees = {.cp = point.degrees.cp, .tp = point.degrees.tp};
    const Config one = config_of(flat, request_.config, flat.microbatch);
    return probe_stages(model_, shape_of(one, model_, {.degrees = flat.degrees}), split, target(),
                        machine_, point.linear);
  }

  ClosedForm form_of(const SearchPoint& point, const price::StageCosts& costs,
                     const price::PipelineShape& shape, double idle_s) const {
    return price::closed_form(costs, shape, spread_of(point.degrees, costs, machine_), idle_s,
                              machine_);
  }

  // Of points that differ in little, the first alone: the table shall show choices.
  static std::vector<const Scored*> leaders(const std::vector<Scored>& scored) {
    using Kind = std::tuple<int64_t, int64_t, int64_t, std::string, int64_t, RecomputeChoice,
                            price::Precision>;
    std::set<Kind> seen;
    std::vector<const Scored*> chosen;
    for (const Scored& s : scored) {
      const SearchPoint& p = *s.point;
      const Degrees& d = p.degrees;
      const std::string& how = d.pp > 1 ? p.schedule : p.sharding;
      if (seen.insert({d.pp, d.cp, d.tp, how, p.microbatch, p.recompute, p.linear}).second)
        chosen.push_back(&s);
    }
    return chosen;
  }

  std::optional<FoundPlan> priced(const Scored& scored) const {
    const SearchPoint& point = *scored.point;
    FoundPlan found{.point = point, .predicted = scored.form};
    found.config = config_of(point, request_.config, request_.config.training.global_batch_size);
    const PricedRun run = price_run({.config = found.config,
                                     .degrees = point.degrees,
                                     .machine = machine_,
                                     .linear = point.linear});
    if (!run.fits()) return std::nullopt;
    found.step = run.step;
    found.peak_bytes = run.planned.fullest().peak_bytes();
    return found;
  }

  void price_finalists(const std::vector<Scored>& scored) {
    const std::vector<const Scored*> all = leaders(scored);
    TOK_REQUIRE(!all.empty(),
                "--search: the smallest of {} plans takes {:.1f} GB of a device, which has {:.1f}",
                result_.num_points, result_.least_bytes * 1e-9, result_.memory_limit_bytes * 1e-9);
    for (size_t begin = 0; begin < all.size();) {
      const size_t end = std::min(all.size(), begin + num_finalists() - result_.best.size());
      std::vector<std::optional<FoundPlan>> found(end - begin);
      in_parallel(found.size(), request_.num_threads,
                  [&](size_t i) { found[i] = priced(*all[begin + i]); });
      result_.num_priced += static_cast<int>(found.size());
      for (std::optional<FoundPlan>& f : found) {
        if (f) result_.best.push_back(std::move(*f));
      }
      begin = end;
      if (std::ssize(result_.best) >= request_.num_best) break;
    }
    TOK_REQUIRE(!result_.best.empty(), "--search: none of {} plans fits into {:.1f} GB of a device",
                result_.num_priced, result_.memory_limit_bytes * 1e-9);
    std::stable_sort(
        result_.best.begin(), result_.best.end(),
        [](const FoundPlan& a, const FoundPlan& b) { return a.step.seconds < b.step.seconds; });
    if (std::ssize(result_.best) > request_.num_best)
      result_.best.resize(static_cast<size_t>(request_.num_best));
  }

  const SearchRequest& request_;
  const price::Machine& machine_;
  ModelSpec model_;
  SearchResult result_;
  std::vector<Scored> scored_;
};

std::string recompute_text(RecomputeChoice choice) {
  constexpr const char* kNames[] = {"none", "selective op", "full"};
  return kNames[static_cast<size_t>(choice)];
}

}  // namespace

SearchResult search_plans(const SearchRequest& request) {
  return Search(request).run();
}

std::string reason_text(const FoundPlan& better, const FoundPlan& other) {
  size_t most = 0;
  std::array<double, price::kNumCategories> saved{};
  for (size_t c = 0; c < price::kNumCategories; ++c) {
    saved[c] = other.step.by_category[c] - better.step.by_category[c];
    if (saved[c] > saved[most]) most = c;
  }
  const double gain = other.step.seconds / better.step.seconds - 1.0;
  const size_t worst =
      static_cast<size_t>(std::min_element(saved.begin(), saved.end()) - saved.begin());
  std::string text = fmt::format("{:.2f} % faster than the next: {} {:.3f} s less", 100.0 * gain,
                                 name_of(static_cast<price::Category>(most)), saved[most]);
  if (saved[worst] < -0.25 * saved[most])
    text += fmt::format(", {} {:.3f} s more", name_of(static_cast<price::Category>(worst)),
                        -saved[worst]);
  return text;
}

std::string search_text(const SearchRequest& request, const SearchResult& result) {
  std::string text = fmt::format(
      "{} plans for {} x {}; {} fit in {:.1f} GiB by closed form ({} probes), {} priced by their "
      "plans\n",
      result.num_points, request.num_gpus, request.machine.name, result.num_fitting,
      result.memory_limit_bytes / (1 << 30), result.num_probes, result.num_priced);
  const int num_layers = static_cast<int>(spec_of(request.config).num_layers);
  for (size_t i = 0; i < result.best.size(); ++i) {
    const FoundPlan& f = result.best[i];
    const double rate =
        result.tokens_per_step / f.step.seconds / static_cast<double>(request.num_gpus);
    const double peak = request.machine.device.peak_flops[static_cast<size_t>(f.point.linear)];
    text += fmt::format(
        "{:>2}  {:9.3f} s  {:8.0f} tokens/s/GPU  MFU {:5.2f} %  {:6.1f} GiB  {}; {}; recompute {}, "
        "{}, {}\n",
        i + 1, f.step.seconds, rate, 100.0 * rate * result.flops_per_token / peak,
        static_cast<double>(f.peak_bytes) / (1 << 30), mesh_text(f.point.degrees),
        schedule_text(f.point, num_layers), recompute_text(f.point.recompute), f.point.sharding,
        name_of(f.point.linear));
    if (i + 1 < result.best.size())
      text += fmt::format("      {}\n", reason_text(f, result.best[i + 1]));
  }
  return text;
}

}  // namespace tokamak
