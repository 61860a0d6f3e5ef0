// A priced step as a table for people and as JSON for programs. Pictures are in pictures.h.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tokamak/price/report/goodput.h"
#include "tokamak/price/step/step_price.h"

namespace tokamak::price {

/// One method to count a model's FLOPs.
struct FlopsCount {
  std::string name;  ///< "torchtitan"
  double per_token = 0.0;
};

/// The cost of saving and losing work in a run.
struct Reliability {
  CheckpointCost checkpoint;
  FailureModel failures;
  int64_t interval_steps = 0;  ///< between checkpoints, with the greatest goodput
  double interval_s = 0.0;     ///< what these take
  double goodput = 1.0;
  int num_nodes = 1;
  int num_spares = 0;  ///< nodes that are enough 99 times in 100
};

struct Report {
  std::string model;
  std::string machine;
  std::string taken;       ///< taken_text() of it
  std::string unverified;  ///< unverified_text() of it
  int64_t num_devices = 1;
  std::string mesh;      ///< "pp 9 x dp_shard 16 x cp 2 x tp 8"
  std::string schedule;  ///< "Interleaved1F1B, 63 microbatches of 1 x 8192"
  Precision precision = Precision::kBf16;
  bool device_graphs = false;
  double slowest_lag = 0.0;  ///< slowest_lag() of these devices
  StepPrice step;
  double tokens_per_step = 0.0;
  std::vector<FlopsCount> flops;
  double peak_flops = 0.0;  ///< of one device at `precision`
  int memory_rank = 0;
  std::vector<MemoryRow> memory;  ///< of that rank, the fullest
  double memory_limit_bytes = 0.0;
  std::string memory_advice;  ///< where it does not fit
  double tokens = 1e12;       ///< to train for
  Reliability reliability;

  double tokens_per_s() const { return tokens_per_step / step.seconds; }

  double device_tokens_per_s() const { return tokens_per_s() / static_cast<double>(num_devices); }

  double device_flops(const FlopsCount& count) const {
    return device_tokens_per_s() * count.per_token;
  }

  double memory_bytes() const;

  bool fits() const { return memory_bytes() <= memory_limit_bytes; }

  /// Returns seconds to `tokens`, without failures.
  double seconds_to_tokens() const { return tokens / tokens_per_s(); }
};

/// Returns that of a job of the state's ranks with steps like `step`, whose optimizer hides no
/// copy.
Reliability reliability_of(const SavedState& state, const StepPrice& step, const Machine& machine);

/// Returns the table for people.
std::string to_text(const Report& report);

/// Returns one object with its keys in the table's order, in seconds, bytes and FLOP/s.
std::string to_json(const Report& report);

}  // namespace tokamak::price
