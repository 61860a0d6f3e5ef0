// Judges each step by its loss and gradient norm, and says what the run does about a bad one.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tokamak {

/// How a run handles a bad step. Rollback resumes from the newest checkpoint, or from the start
/// if there is none; a step that is bad again after that is skipped.
enum class BadStepPolicy : uint8_t { kOff, kWarn, kStop, kSkip, kReplay, kRollback };

/// Returns the policy of a key's value ("warn"); throws Error naming the key.
BadStepPolicy bad_step_policy(std::string_view value, std::string_view key);

struct GuardOptions {
  BadStepPolicy on_nonfinite = BadStepPolicy::kStop;  ///< never kOff or kWarn
  BadStepPolicy on_spike = BadStepPolicy::kWarn;
  double spike_factor = 10.0;

  /// Whether the update must skip steps whose gradient norm is above a limit.
  bool limits_norm() const {
    return on_spike == BadStepPolicy::kSkip || on_spike == BadStepPolicy::kReplay;
  }

  /// Whether the run ends or goes back by the value of a finite loss.
  bool decides_by_loss() const {
    return on_spike == BadStepPolicy::kStop || on_spike == BadStepPolicy::kRollback;
  }
};

/// The range of recent values of a step's scalar.
class RecentValues {
 public:
  explicit RecentValues(double factor) : factor_(factor) {}

  void add(double value);

  /// Returns the largest value that is no spike: the median of the last 100 plus `factor` times
  /// their spread, which is that between the 10th and 90th percentile, or a tenth of the median
  /// where that is more. It is infinite before the 20th value.
  double limit() const;

  double median() const { return quantile(0.5); }

 private:
  static constexpr size_t kKept = 100;
  static constexpr size_t kLeast = 20;

  double quantile(double q) const;

  double factor_;
  std::vector<double> values_;
  size_t next_ = 0;
};

/// What is wrong with a step.
enum class StepFault : uint8_t { kNone, kNonFinite, kNormSpike, kLossSpike };

class StepGuard {
 public:
  explicit StepGuard(const GuardOptions& options)
      : o_(options), losses_(options.spike_factor), norms_(options.spike_factor) {}

  const GuardOptions& options() const { return o_; }

  /// Returns what is done about the fault. An update that was made cannot be left out or made
  /// again, so a spike of the loss alone is let pass where others are skipped or replayed.
  BadStepPolicy policy(StepFault fault) const;

  /// Whether the update of a step with this fault was left out.
  bool leaves_out(StepFault fault) const {
    return fault == StepFault::kNonFinite || (fault == StepFault::kNormSpike && o_.limits_norm());
  }

  /// Returns the gradient norm above which the next step's update is left out.
  double norm_limit() const { return norms_.limit(); }

  /// Judges a step whose update was left out if its norm was above `norm_limit`. A good step's
  /// values are added to the recent ones.
  StepFault judge(double loss, double norm, double norm_limit);

  /// Adds the values of a spike that was let pass, so that a new level is a spike only for a while.
  void accept(double loss, double norm);

  /// Returns "loss 9.5 where the median of recent steps is 2.31", or what else the fault is.
  std::string describe(StepFault fault, double loss, double norm) const;

 private:
  GuardOptions o_;
  RecentValues losses_;
  RecentValues norms_;
};

}  // namespace tokamak
