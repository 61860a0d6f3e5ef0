// How long the plans of a search take: lower bounds of all, and estimates of those that may be
// among the best. docs/pricing.md, "Search".
#pragma once

#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "tokamak/price/run/slowest_place.h"
#include "tokamak/price/step/stage_costs.h"
#include "tokamak/search/search.h"

namespace tokamak {

/// How closely a point was looked at.
enum class Grain : uint8_t {
  kBound,  ///< a lower bound for all points that share a pipeline
  kItems,  ///< only the pipeline's items were run
  kStep,   ///< estimated
};

struct PointEstimate {
  const SearchPoint* point = nullptr;
  double seconds = 0.0;
  double least_bytes = 0.0;  ///< of the fullest device
  Grain grain = Grain::kBound;
};

class PointEstimates {
 public:
  explicit PointEstimates(const SearchRequest& request);

  /// Returns lower bounds of the points that may fit; the same for any number of threads. Throws
  /// Error if no point's weights fit, or none has a plan.
  std::vector<PointEstimate> bounds(const std::vector<SearchPoint>& points);

  /// Returns the next grain of each point that has a plan; the time is 0 where it does not fit. Any
  /// number of threads may call it. REQUIRES: not yet kStep.
  std::vector<PointEstimate> look_closer(const PointEstimate& estimate);

  /// Returns the number of points that may fit, by their bounds.
  int64_t num_fitting() const { return num_fitting_; }

  /// Returns the number of small relatives that were planned.
  int num_probes() const;

  /// Returns the least bytes among points that do not fit.
  double least_bytes() const { return least_bytes_; }

 private:
  // The costs of a stage depend on these only.
  using StageKey = std::tuple<int64_t, int64_t, int64_t, RecomputeChoice, price::Precision>;

  struct Probes {
    std::optional<price::StageCosts> whole;
    std::once_flag once;
    std::optional<price::StageCosts> split;  // of stages that split their backwards
    std::string error;                       // why there is none, or empty
  };

  static StageKey stage_key(const SearchPoint& point);

  double weight_bytes(const SearchPoint& point) const;
  // Points that share all but how they cut data parallelism; the first stands for them.
  using Group = std::vector<const SearchPoint*>;

  // The bounds of points that share a stage's costs.
  struct StageBounds {
    std::vector<PointEstimate> bounds;
    std::map<const SearchPoint*, Group> groups;
    int64_t num_fitting = 0;
    double least_bytes = std::numeric_limits<double>::infinity();  // of those that do not fit
  };

  StageBounds bounds_of_stage(const std::vector<const SearchPoint*>& points);
  std::vector<PointEstimate> run_items(const SearchPoint& point);
  double flat_seconds(const SearchPoint& point) const;
  price::StageCosts probe(const SearchPoint& point, bool split) const;
  const price::StageCosts& costs_of(const SearchPoint& point, bool split);

  const SearchRequest& request_;
  const price::Machine machine_;  // as the slowest of all devices
  const Target target_;
  ModelSpec model_;
  price::StageModules all_;
  price::ElementBytes bytes_;
  CausalWork work_;
  double limit_;
  double least_bytes_ = std::numeric_limits<double>::infinity();
  PipelineShapes shapes_;
  std::map<StageKey, Probes> probes_;
  std::map<const SearchPoint*, Group> groups_;  // of pipelines, by the first
  int64_t num_fitting_ = 0;
};

}  // namespace tokamak
