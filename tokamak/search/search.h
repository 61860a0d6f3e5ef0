// The fastest plans for a model and a batch on N devices: estimates order them, plan pricing
// decides (docs/pricing.md).
#pragma once

#include <string>
#include <vector>

#include "tokamak/price/run/priced_run.h"
#include "tokamak/search/search_space.h"

namespace tokamak {

struct SearchRequest {
  Config config;  ///< the search chooses mesh, schedule, microbatch, recompute and sharding
  int64_t num_gpus = 1;
  price::Machine machine;
  std::vector<price::Precision> precisions{price::Precision::kBf16};
  int num_best = 10;
  int num_threads = 2;
};

/// A plan as plan pricing found it.
struct FoundPlan {
  SearchPoint point;
  Config config;
  price::StepPrice step;
  int64_t peak_bytes = 0;  ///< of the fullest device
};

/// A plan before it is priced.
struct PointEstimate {
  const SearchPoint* point = nullptr;
  double seconds = 0.0;
  double bytes = 0.0;  ///< of the fullest device
};

struct SearchResult {
  std::vector<SearchPoint> points;       ///< all that were considered; estimates point at them
  std::vector<FoundPlan> best;           ///< fastest first
  std::vector<PointEstimate> estimated;  ///< what may fit, fastest first
  int num_relatives = 0;  ///< small models that were planned and priced for the estimates
  int num_priced = 0;
  double tokens_per_step = 0.0;
  double flops_per_token = 0.0;  ///< as torchtitan counts
  double memory_limit_bytes = 0.0;
};

/// The result is the same for any number of threads. Throws Error if the batch is not given, or if
/// nothing fits: the line says how much memory the smallest plan needs.
SearchResult search_plans(const SearchRequest& request);

/// Says why `better` takes less time than `other`: the category that differs most.
std::string reason_text(const FoundPlan& better, const FoundPlan& other);

/// Returns the table of the best plans, with the reason why each beats the next.
std::string search_text(const SearchRequest& request, const SearchResult& result);

/// Returns a page with time over memory of the plans, and the table.
std::string search_page(const SearchRequest& request, const SearchResult& result);

/// Returns the same as one JSON object in seconds, bytes and FLOP/s.
std::string search_json(const SearchRequest& request, const SearchResult& result);

}  // namespace tokamak
