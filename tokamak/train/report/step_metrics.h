// The metrics of one logged step: the log line, metrics.jsonl and TensorBoard show them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tokamak {

/// Mean seconds of a step by phase since the last logged step; absent = not measured.
struct PhaseSeconds {
  std::optional<double> data = std::nullopt;
  std::optional<double> forward = std::nullopt;
  std::optional<double> backward = std::nullopt;
  std::optional<double> exposed_comm = std::nullopt;
  std::optional<double> optimizer = std::nullopt;
  std::optional<double> checkpoint = std::nullopt;
};

/// One logged optimizer step. Optional fields are unknown on some machines and become null.
struct StepMetrics {
  /// Counts from 1.
  int64_t step = 0;
  /// Before the update; the mean over all label tokens of the global batch.
  double loss = 0.0;
  /// The largest mean loss of one data-parallel rank.
  std::optional<double> max_loss = std::nullopt;
  /// Before clipping.
  double grad_norm = 0.0;
  double lr = 0.0;
  int64_t tokens_seen = 0;
  /// Tokens per second and device since the last logged step.
  std::optional<double> tps = std::nullopt;
  /// Model TFLOP/s per device, causality not discounted.
  std::optional<double> tflops = std::nullopt;
  /// Percent of the device's peak; absent where no peak is known.
  std::optional<double> mfu = std::nullopt;
  /// Peak memory since the last logged step; on a CPU the process's peak resident set.
  std::optional<double> memory_gib = std::nullopt;
  std::optional<double> memory_percent = std::nullopt;
  /// Mean seconds of a step since the last logged step.
  std::optional<double> step_time_s = std::nullopt;
  PhaseSeconds seconds = {};
  /// Sites whose values exceeded their delayed scale, on this rank's pipeline stages.
  std::optional<double> saturated_sites = std::nullopt;
  /// Saves that have failed since the last good one.
  int64_t failed_saves = 0;
  int64_t world_size = 1;
  /// The id that the cluster's scheduler gives the job; empty where there is none.
  std::string job = {};
};

/// The line that a terminal shows between log lines.
struct StepProgress {
  int64_t step = 0;
  int64_t num_steps = 0;
  double loss = 0.0;
  /// Tokens per second and device over the last steps.
  std::optional<double> tps = std::nullopt;
  /// Until the last step, at the pace of the last ones.
  std::optional<double> seconds_left = std::nullopt;
  double memory_gib = 0.0;
};

/// One validation pass, after `step` updates.
struct ValidationMetrics {
  int64_t step = 0;
  double loss = 0.0;
  std::optional<double> tps = std::nullopt;
  std::optional<double> memory_gib = std::nullopt;
  std::optional<double> memory_percent = std::nullopt;
  std::optional<double> time_s = std::nullopt;
  int64_t world_size = 1;
};

}  // namespace tokamak
