#include "tokamak/search/search.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tokamak/core/bytes.h"
#include "tokamak/core/error.h"
#include "tokamak/core/in_parallel.h"
#include "tokamak/run/flops.h"
#include "tokamak/run/run_of_config.h"
#include "tokamak/search/plan_scores.h"

namespace tokamak {
namespace {

class Search {
 public:
  explicit Search(const SearchRequest& request)
      : request_(request), machine_(request.machine), model_(spec_of(request.config)) {}

  SearchResult run() {
    price::require_devices(machine_, request_.num_gpus,
                           fmt::format("--search: --gpus {}", request_.num_gpus));
    for (const price::Precision precision : request_.precisions)
      price::require_products(machine_, precision);
    const SearchBounds bounds = bounds_of();
    const std::vector<SearchPoint> points = search_points(model_, bounds);
    TOK_REQUIRE(!points.empty(),
                "--search: no mesh of {} devices divides training.global_batch_size = {}",
                request_.num_gpus, bounds.global_batch);
    result_.num_points = std::ssize(points);
    const auto seq_len = static_cast<double>(bounds.seq_len);
    result_.tokens_per_step = static_cast<double>(bounds.global_batch) * seq_len;
    result_.flops_per_token = flops_per_token(flops_shape(model_, bounds.seq_len));
    result_.memory_limit_bytes = memory_limit(machine_);
    const Scores scores = score_points(request_, points, num_finalists());
    result_.num_fitting = std::ssize(scores.fitting);
    result_.num_probes = scores.num_probes;
    price_finalists(scores);
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

  // Tensor parallelism waits for each of its messages: it stays where a device has at least twice
  // the bandwidth that it has to the whole fabric.
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

  // Closed forms err by a few percent, so some more than are asked for are priced.
  size_t num_finalists() const { return static_cast<size_t>(request_.num_best) + 2; }

  FoundPlan priced(const Scored& scored) const {
    const SearchPoint& point = *scored.point;
    FoundPlan found{.point = point, .predicted = scored.form};
    found.config = config_of(point, request_.config, request_.config.training.global_batch_size);
    const PricedRun run = price_run({.config = found.config,
                                     .degrees = point.degrees,
                                     .machine = machine_,
                                     .linear = point.linear});
    found.step = run.step;
    found.peak_bytes = run.planned.fullest().peak_bytes();
    return found;
  }

  void price_finalists(const Scores& scores) {
    const std::vector<const Scored*> all = leaders(scores.fitting);
    const auto require_one = [&](bool fits, double least_bytes) {
      TOK_REQUIRE(fits,
                  "--search: the smallest of {} plans takes at least {:.1f} GiB of a device, which "
                  "has {:.1f}: "
                  "wanted more --gpus or a smaller model",
                  result_.num_points, least_bytes / kGiB, result_.memory_limit_bytes / kGiB);
    };
    TOK_REQUIRE(std::isfinite(scores.least_bytes), "--search: none of {} meshes has a plan",
                result_.num_points);
    require_one(!all.empty(), scores.least_bytes);
    double least_bytes = std::numeric_limits<double>::infinity();
    for (size_t begin = 0; begin < all.size();) {
      const size_t end = std::min(all.size(), begin + num_finalists() - result_.best.size());
      std::vector<FoundPlan> found(end - begin);
      in_parallel(found.size(), request_.num_threads,
                  [&](size_t i) { found[i] = priced(*all[begin + i]); });
      result_.num_priced += static_cast<int>(found.size());
      for (FoundPlan& f : found) {
        const auto bytes = static_cast<double>(f.peak_bytes);
        least_bytes = std::min(least_bytes, bytes);
        if (bytes <= result_.memory_limit_bytes) result_.best.push_back(std::move(f));
      }
      begin = end;
      if (std::ssize(result_.best) >= request_.num_best) break;
    }
    require_one(!result_.best.empty(), least_bytes);
    std::stable_sort(
        result_.best.begin(), result_.best.end(),
        [](const FoundPlan& a, const FoundPlan& b) { return a.step.seconds < b.step.seconds; });
    if (std::ssize(result_.best) > request_.num_best) result_.best.resize(request_.num_best);
  }

  const SearchRequest& request_;
  const price::Machine& machine_;
  ModelSpec model_;
  SearchResult result_;
};

}  // namespace

SearchResult search_plans(const SearchRequest& request) {
  return Search(request).run();
}

}  // namespace tokamak
