#include "tokamak/search/search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "tokamak/core/bytes.h"
#include "tokamak/core/error.h"
#include "tokamak/core/in_parallel.h"
#include "tokamak/run/flops.h"
#include "tokamak/run/run_of_config.h"
#include "tokamak/search/estimates.h"

namespace tokamak {
namespace {

// Plans of one kind differ in little. The table shows one of each kind, so that it shows choices.
using PlanKind =
    std::tuple<int64_t, int64_t, int64_t, std::string, int64_t, RecomputeChoice, price::Precision>;

PlanKind plan_kind(const SearchPoint& p) {
  const Degrees& d = p.degrees;
  return {d.pp,         d.cp,        d.tp,    d.pp > 1 ? p.schedule : sharding_text(p),
          p.microbatch, p.recompute, p.linear};
}

using StagesKind = std::pair<PlanKind, int>;

StagesKind stages_kind(const SearchPoint& p) {
  return {plan_kind(p), p.layers_per_stage};
}

std::string schedule_of(const SearchPoint& p) {
  return p.degrees.pp > 1 ? p.schedule : p.sharding;
}

// This many of the best plans are also priced with other keys.
constexpr std::ptrdiff_t kMostTried = 3;

class Search {
 public:
  explicit Search(const SearchRequest& request)
      : request_(request), machine_(request.machine), model_(spec_of(request.config)) {}

  SearchResult run() {
    price::require_devices(machine_, request_.num_gpus,
                           fmt::format("--search: --gpus {}", request_.num_gpus));
    for (const price::Precision precision : request_.precisions) {
      price::require_products(machine_, precision);
      require_planned(precision, machine_);
    }
    const SearchBounds bounds = bounds_of();
    result_.points = search_points(model_, bounds);
    TOK_REQUIRE(!result_.points.empty(),
                "--search: no mesh of {} devices divides training.global_batch_size = {}",
                request_.num_gpus, bounds.global_batch);
    const auto seq_len = static_cast<double>(bounds.seq_len);
    result_.tokens_per_step = static_cast<double>(bounds.global_batch) * seq_len;
    result_.flops_per_token = flops_per_token(flops_shape(model_, bounds.seq_len));
    result_.memory_limit_bytes = memory_limit(machine_);
    find();
    return std::move(result_);
  }

 private:
  SearchBounds bounds_of() const {
    const TrainingConfig& t = request_.config.training;
    TOK_REQUIRE(t.global_batch_size > 0,
                "--search: training.global_batch_size = {}: wanted the batch that all plans share",
                t.global_batch_size);
    return {.num_gpus = request_.num_gpus,
            .global_batch = t.global_batch_size,
            .seq_len = t.seq_len,
            .largest_tp = largest_tp(),
            .precisions = request_.precisions};
  }

  // Tensor parallelism waits for each of its messages, so it stays within levels where a device has
  // at least twice the bandwidth that it has to the whole fabric.
  int64_t largest_tp() const {
    constexpr int64_t kMost = 16;
    if (machine_.levels.empty()) return 1;
    const price::Level& outermost = machine_.levels.back();
    int64_t largest = 1;
    for (const price::Level& level : machine_.levels) {
      const bool is_fast =
          &level == &machine_.levels.front() || level.bytes_per_s >= 2.0 * outermost.bytes_per_s;
      const int64_t devices = level.num_devices > 0 ? level.num_devices : request_.num_gpus;
      if (is_fast) largest = std::max(largest, devices);
    }
    return std::min(largest, kMost);
  }

  // Returns nothing if a stage cannot be planned.
  std::optional<FoundPlan> priced(const SearchPoint& point) const {
    FoundPlan found{.point = point};
    found.config = config_of(point, request_.config, request_.config.training.global_batch_size);
    try {
      const PricedRun run = price_run({.config = found.config,
                                       .degrees = point.degrees,
                                       .machine = machine_,
                                       .linear = point.linear});
      found.step = run.step;
      found.peak_bytes = run.planned.fullest().peak_bytes();
    } catch (const Error&) {
      return std::nullopt;
    }
    return found;
  }

  // Returns the step time that a plan has to beat.
  double enough() const {
    const auto num_wanted = static_cast<size_t>(request_.num_best);
    if (result_.best.size() < num_wanted) return std::numeric_limits<double>::infinity();
    return result_.best[num_wanted - 1].step.seconds;
  }

  // Prices the points in the order of their estimates until none that is left can be among the
  // best.
  void find() {
    const Estimates estimates = estimate_points(request_, result_.points);
    result_.num_relatives = estimates.num_relatives;
    result_.estimated = estimates.fitting;
    least_bytes_ = estimates.least_bytes;
    left_ = estimates.fitting;
    for (auto batch = next(); !batch.empty(); batch = next()) {
      std::vector<std::optional<FoundPlan>> found(batch.size());
      in_parallel(batch.size(), request_.num_threads,
                  [&](size_t i) { found[i] = priced(*batch[i].point); });
      for (size_t i = 0; i < batch.size(); ++i) {
        if (found[i]) keep(batch[i], std::move(*found[i]));
      }
    }
    finish();
  }

  // Returns the estimate, by what plans of the same schedule took at least over theirs.
  double likely_seconds(const PointEstimate& e) const {
    const auto ratio = least_ratio_.find(schedule_of(*e.point));
    return e.seconds * (ratio == least_ratio_.end() ? 1.0 : ratio->second);
  }

  // A batch has a fixed size, so that the result does not depend on the number of threads. Of plans
  // that differ in little only a few are priced.
  std::vector<PointEstimate> next() {
    constexpr size_t kBatch = 8;
    constexpr int kMostOfKind = 4;
    std::vector<PointEstimate> batch;
    std::vector<PointEstimate> left;
    const double enough_s = enough();
    std::stable_sort(left_.begin(), left_.end(),
                     [&](const PointEstimate& a, const PointEstimate& b) {
                       return likely_seconds(a) < likely_seconds(b);
                     });
    for (const PointEstimate& e : left_) {
      if (found_.count(stages_kind(*e.point)) > 0) continue;
      const auto more = more_bytes_.find(plan_kind(*e.point));
      const double more_bytes = more == more_bytes_.end() ? 0.0 : more->second;
      if (likely_seconds(e) > enough_s || e.bytes + more_bytes > result_.memory_limit_bytes)
        continue;
      if (num_of_kind_[plan_kind(*e.point)] >= kMostOfKind) continue;
      const bool is_batched = std::any_of(batch.begin(), batch.end(), [&](const PointEstimate& b) {
        return stages_kind(*b.point) == stages_kind(*e.point);
      });
      (batch.size() < kBatch && !is_batched ? batch : left).push_back(e);
    }
    left_ = std::move(left);
    return batch;
  }

  void keep(const PointEstimate& estimate, FoundPlan found) {
    ++result_.num_priced;
    const auto bytes = static_cast<double>(found.peak_bytes);
    least_bytes_ = std::min(least_bytes_, bytes);
    const double more_bytes = bytes - estimate.bytes;
    double& more = more_bytes_.try_emplace(plan_kind(*estimate.point), more_bytes).first->second;
    more = std::min(more, more_bytes);
    const double ratio = found.step.seconds / estimate.seconds;
    double& least = least_ratio_.try_emplace(schedule_of(*estimate.point), ratio).first->second;
    least = std::min(least, ratio);
    const PlanKind kind = plan_kind(*estimate.point);
    ++num_of_kind_[kind];
    if (bytes > result_.memory_limit_bytes) return;
    found_.insert(stages_kind(*estimate.point));
    const auto other =
        std::find_if(result_.best.begin(), result_.best.end(),
                     [&](const FoundPlan& plan) { return plan_kind(plan.point) == kind; });
    if (other != result_.best.end()) {
      if (other->step.seconds <= found.step.seconds) return;
      result_.best.erase(other);
    }
    insert(std::move(found));
  }

  void insert(FoundPlan found) {
    const auto at = std::upper_bound(
        result_.best.begin(), result_.best.end(), found,
        [](const FoundPlan& a, const FoundPlan& b) { return a.step.seconds < b.step.seconds; });
    result_.best.insert(at, std::move(found));
  }

  // Prices the best plans with the other methods of context parallelism, too.
  void try_other_contexts() {
    std::vector<SearchPoint> points;
    for (int64_t i = 0; i < std::min(std::ssize(result_.best), kMostTried); ++i) {
      SearchPoint point = result_.best[i].point;
      if (point.degrees.cp == 1) continue;
      for (const char* method : {"alltoall", "ulysses"}) {
        point.context = method;
        points.push_back(point);
      }
    }
    std::vector<std::optional<FoundPlan>> found(points.size());
    in_parallel(points.size(), request_.num_threads,
                [&](size_t i) { found[i] = priced(points[i]); });
    for (std::optional<FoundPlan>& plan : found) {
      if (!plan) continue;
      ++result_.num_priced;
      if (static_cast<double>(plan->peak_bytes) <= result_.memory_limit_bytes)
        insert(std::move(*plan));
    }
  }

  // Prices each of the best plans with keys that buy time for memory, too, and keeps what is
  // faster.
  void try_other_memory() {
    try_all([&](const FoundPlan& plan) { return with_other_memory(plan); });
    try_all([&](const FoundPlan& plan) { return with_other_loss(plan); });
    std::stable_sort(
        result_.best.begin(), result_.best.end(),
        [](const FoundPlan& a, const FoundPlan& b) { return a.step.seconds < b.step.seconds; });
  }

  template <class F>
  void try_all(const F& points_beside) {
    const auto count = static_cast<size_t>(std::min(std::ssize(result_.best), kMostTried));
    std::vector<std::pair<size_t, SearchPoint>> tried;
    for (size_t i = 0; i < count; ++i) {
      for (const SearchPoint& point : points_beside(result_.best[i])) tried.emplace_back(i, point);
    }
    std::vector<std::optional<FoundPlan>> found(tried.size());
    in_parallel(tried.size(), request_.num_threads,
                [&](size_t t) { found[t] = priced(tried[t].second); });
    for (size_t t = 0; t < tried.size(); ++t) {
      if (!found[t]) continue;
      ++result_.num_priced;
      FoundPlan& best = result_.best[tried[t].first];
      if (static_cast<double>(found[t]->peak_bytes) <= result_.memory_limit_bytes &&
          found[t]->step.seconds < best.step.seconds)
        best = std::move(*found[t]);
    }
  }

  std::vector<SearchPoint> with_other_memory(const FoundPlan& plan) const {
    std::vector<SearchPoint> points{plan.point};
    const auto also = [&](auto SearchPoint::*key, auto value) {
      for (size_t i = 0, count = points.size(); i < count; ++i) {
        if (points[i].*key) continue;
        points.push_back(points[i]);
        points.back().*key = value;
      }
    };
    const SearchPoint& point = plan.point;
    if (point.degrees.tp > 1 && point.recompute != RecomputeChoice::kFull) {
      using enum GatherAgain;
      const ActivationCheckpointConfig& a = plan.config.activation_checkpoint;
      const GatherAgain configured = !a.gather_again            ? kNone
                                     : a.gather_again_with_head ? kAll
                                                                : kAllButHead;
      for (const GatherAgain other : {kNone, kAllButHead, kAll}) {
        if (other != configured && (other != kAllButHead || point.degrees.pp > 1))
          also(&SearchPoint::gather_again, other);
      }
    }
    const std::string& schedule = point.schedule;
    const bool may_join = schedule == "1F1B" || schedule == "Interleaved1F1B";
    if (point.degrees.tp > 1 && point.degrees.pp > 1 && may_join)
      also(&SearchPoint::joins_forwards, !plan.config.parallelism.pipeline_parallel_join_forwards);
    if (plans_low(point.linear, machine_))
      also(&SearchPoint::keeps_transposed, !trades_of(plan.config).keeps_transposed);
    points.erase(points.begin());
    return points;
  }

  std::vector<SearchPoint> with_other_loss(const FoundPlan& plan) const {
    if (!plans_low(plan.point.linear, machine_) || !lowers_head(plan.config)) return {};
    SearchPoint point = plan.point;
    point.long_loss_chunks = !trades_of(plan.config).long_loss_chunks;
    return {point};
  }

  void finish() {
    TOK_REQUIRE(std::isfinite(least_bytes_), "--search: none of {} meshes has a plan",
                result_.points.size());
    TOK_REQUIRE(!result_.best.empty(),
                "--search: the smallest of {} plans takes at least {:.1f} GiB of a device, which "
                "has {:.1f}: wanted more --gpus or a smaller model",
                result_.points.size(), least_bytes_ / kGiB, result_.memory_limit_bytes / kGiB);
    try_other_contexts();
    try_other_memory();
    if (std::ssize(result_.best) > request_.num_best) result_.best.resize(request_.num_best);
  }

  const SearchRequest& request_;
  const price::Machine& machine_;
  ModelSpec model_;
  SearchResult result_;
  std::vector<PointEstimate> left_;      // to be priced, fastest first
  std::map<PlanKind, int> num_of_kind_;  // priced
  std::set<StagesKind> found_;
  std::map<PlanKind, double> more_bytes_;  // than estimated, the least of priced plans
  // The least price over the estimate of plans by schedule.
  std::map<std::string, double> least_ratio_;
  // The least bytes of plans that were priced or whose items do not fit.
  double least_bytes_ = std::numeric_limits<double>::infinity();
};

}  // namespace

SearchResult search_plans(const SearchRequest& request) {
  return Search(request).run();
}

}  // namespace tokamak
