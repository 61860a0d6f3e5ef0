#include "tokamak/train/guard/bad_steps.h"

#include <cmath>
#include <vector>

#include <fmt/ranges.h>

#include "tokamak/comm/flight.h"
#include "tokamak/core/error.h"
#include "tokamak/train/together.h"

namespace tokamak {
namespace {

constexpr int64_t kMostInARow = 10;
constexpr int64_t kMostRollbacks = 10;
// Steps after a spike in which a checkpoint may still bear its marks.
constexpr int64_t kSuspectSteps = 20;

std::string_view key_of(StepFault fault) {
  return fault == StepFault::kNonFinite ? "training.on_nonfinite" : "training.on_spike";
}

}  // namespace

std::string ranks_not_finite(World& world, double own_loss) {
  const std::string host = world.flights().host;
  const auto hosts = world.all_gather_text(std::isfinite(own_loss) ? "" : "(" + host + ")");
  std::vector<std::string> ranks;
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    if (!hosts[rank].empty())
      ranks.push_back(fmt::format("{}{}", rank, hosts[rank] == "()" ? "" : " " + hosts[rank]));
  }
  if (ranks.empty()) return ", though every rank's own loss is finite";
  if (ranks.size() == hosts.size()) return " in the loss of every rank";
  return fmt::format(" in the loss of rank{} {} alone", ranks.size() == 1 ? "" : "s",
                     fmt::join(ranks, ", "));
}

bool BadSteps::may_leave_out() const {
  const GuardOptions& o = guard_.options();
  return o.limits_norm() || o.on_nonfinite == BadStepPolicy::kSkip ||
         o.on_nonfinite == BadStepPolicy::kReplay;
}

void BadSteps::stop(const std::string& text) const {
  fail_together(world_, [&] { throw Diverged(text); });
  TOK_CHECK(false);
}

void BadSteps::count_rollback(const std::string& why) {
  if (++rollbacks_ > kMostRollbacks)
    stop(fmt::format("{}; {} rollbacks have not helped", why, kMostRollbacks));
}

Verdict BadSteps::roll_back(int64_t step, const std::string& what) {
  count_rollback(what);
  if (!rolled_back_.insert(step).second) {
    left_out_.insert(step);
    log_.say(fmt::format("{}, as before the rollback: its batch is left out from now on", what),
             "WARNING");
  } else {
    log_.say(fmt::format("{}: going back to the last checkpoint", what), "WARNING");
  }
  return Verdict::kRollBack;
}

Verdict BadSteps::judge(const JudgedStep& s) {
  const StepFault fault = guard_.judge(s.loss, s.grad_norm, s.norm_limit);
  const bool is_second_run = replayed_ == s.step;
  if (fault == StepFault::kNone) {
    if (is_second_run) {
      log_.say(
          fmt::format("step {} run again: loss {:.6g}, gradient norm {:.6g}; the first run was "
                      "wrong, which is a fault of a device that has passed",
                      s.step, s.loss, s.grad_norm),
          "WARNING");
    }
    replayed_ = -1;
    in_a_row_ = 0;
    return Verdict::kGoOn;
  }
  const std::string text = guard_.describe(fault, s.loss, s.grad_norm) + s.where;
  const BadStepPolicy policy = guard_.policy(fault);
  const std::string what = fmt::format("step {}: {}", s.step, text);
  if (policy == BadStepPolicy::kReplay && !is_second_run) {
    replayed_ = s.step;
    log_.say(fmt::format("{}: the step runs again", what), "WARNING");
    return Verdict::kReplay;
  }
  replayed_ = -1;
  last_bad_ = s.step;
  last_text_ = text;
  in_a_row_ = policy == BadStepPolicy::kWarn ? 0 : in_a_row_ + 1;
  if (policy == BadStepPolicy::kStop && fault == StepFault::kNonFinite) {
    stop(
        fmt::format("training diverged at step {}: {} ({} label tokens); nothing was updated, the "
                    "last checkpoint is kept; lower optimizer.lr or look at the data",
                    s.step, text, s.label_tokens));
  }
  if (policy == BadStepPolicy::kStop) {
    stop(fmt::format("{}; the last checkpoint is kept ({} = \"stop\")", what, key_of(fault)));
  }
  if (in_a_row_ >= kMostInARow)
    stop(fmt::format("{}; {} steps in a row were bad", what, in_a_row_));
  if (policy == BadStepPolicy::kRollback) return roll_back(s.step, what);
  const bool is_left_out = guard_.leaves_out(fault);
  if (!is_left_out) guard_.accept(s.loss, s.grad_norm);
  log_.say(fmt::format("{}{}{}", what, is_second_run ? ", also when it ran again" : "",
                       is_left_out ? ": its update was left out" : ""),
           "WARNING");
  return is_left_out ? Verdict::kLeftOut : Verdict::kGoOn;
}

void BadSteps::before_save(int64_t step) const {
  if (last_bad_ < 0 || step < last_bad_ || step - last_bad_ > kSuspectSteps) return;
  log_.say(fmt::format("the checkpoint of step {} comes {} steps after a bad one (step {}: {})",
                       step, step - last_bad_, last_bad_, last_text_),
           "WARNING");
}

}  // namespace tokamak
