// What a run does about steps whose loss or gradient norm is bad: says so, stops, leaves the update
// out, runs the step again or goes back to a checkpoint.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "tokamak/comm/communicator.h"
#include "tokamak/train/guard/step_guard.h"
#include "tokamak/train/report/run_log.h"

namespace tokamak {

struct JudgedStep {
  int64_t step = 0;
  double loss = 0.0;
  double grad_norm = 0.0;
  double norm_limit = 0.0;  ///< above which the update was left out
  int64_t label_tokens = 0;
  std::string where;  ///< ranks_not_finite()
};

/// Returns " in the loss of rank 1 (node4) alone", or which ranks' else; all ranks return the same.
/// `own_loss` is the sum of this rank's terms. Collective.
std::string ranks_not_finite(World& world, double own_loss);

/// With kLeftOut and kReplay the step has updated nothing.
enum class Verdict : uint8_t { kGoOn, kLeftOut, kReplay, kRollBack };

/// All ranks judge the same values, so they come to the same verdict without asking each other.
class BadSteps {
 public:
  BadSteps(const GuardOptions& options, const World& world, const RunLog& log)
      : guard_(options), world_(world), log_(log) {}

  /// Returns what is to be done after the step. Throws Diverged, on all ranks alike, where the
  /// policy is to stop, or where it has not helped: ten bad steps in a row, or ten rollbacks.
  Verdict judge(const JudgedStep& step);

  /// Returns the norm above which the next update is left out.
  double norm_limit() const { return guard_.norm_limit(); }

  /// Whether a step's results must be known before the next is issued, which may be that step again
  /// or the first update in its place.
  bool may_leave_out() const;

  /// Whether the step was bad before and after a rollback, so that its batch is left out.
  bool is_left_out(int64_t step) const { return left_out_.contains(step); }

  /// Counts a rollback for any reason; throws Diverged with the reason at the eleventh.
  void count_rollback(const std::string& why);

  /// Says so if the checkpoint of `step` comes soon after a bad step.
  void before_save(int64_t step) const;

 private:
  [[noreturn]] void stop(const std::string& text) const;
  Verdict roll_back(int64_t step, const std::string& what);

  StepGuard guard_;
  const World& world_;
  const RunLog& log_;
  int64_t last_bad_ = -1;
  std::string last_text_;
  int64_t in_a_row_ = 0;
  int64_t replayed_ = -1;  ///< the step that runs for the second time
  int64_t rollbacks_ = 0;
  std::set<int64_t> rolled_back_;
  std::set<int64_t> left_out_;
};

}  // namespace tokamak
