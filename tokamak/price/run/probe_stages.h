// The stages of a probe's plan, for price/run/stage_probe.cpp and price/run/stage_times.cpp.
#pragma once

#include <map>

#include "tokamak/plan/plan.h"
#include "tokamak/price/step/closed_form.h"
#include "tokamak/price/task/task_time.h"

namespace tokamak {

/// Stages of the probed rank: with embedding, two inner ones of different depth, with head. Another
/// rank has a stage between any two, so that all values travel.
inline constexpr int kFirstStage = 0;
inline constexpr int kShortStage = 2;
inline constexpr int kLongStage = 4;
inline constexpr int kLastStage = 6;
inline constexpr int kNumProbeStages = 7;

/// Layers of the stages, in multiples of the period in which the recompute policy repeats.
struct Depths {
  int few = 2;
  int many = 4;
};

/// Values of the four stages, as a sum over modules.
class ByStage {
 public:
  explicit ByStage(const Depths& depths) : depths_(depths) {}

  double& operator[](int stage) { return values_[stage]; }

  price::StageSum sum() {
    price::StageSum sum;
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

/// How the stages of a probe are timed.
struct ProbePrice {
  const price::Machine& machine;
  const price::PriceOptions& options;
  int64_t num_gpus;  ///< of the whole mesh
};

/// Fills what of `costs` is seconds or power of stages. REQUIRES: its `span` is set.
void read_times(const Plan& plan, const Depths& depths, const ProbePrice& how,
                price::StageCosts& costs);

}  // namespace tokamak
