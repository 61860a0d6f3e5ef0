#include "tokamak/train/guard/step_guard.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "tokamak/core/error.h"

namespace tokamak {

BadStepPolicy bad_step_policy(std::string_view value, std::string_view key) {
  using enum BadStepPolicy;
  constexpr std::pair<std::string_view, BadStepPolicy> kPolicies[] = {
      {"off", kOff},   {"warn", kWarn},     {"stop", kStop},
      {"skip", kSkip}, {"replay", kReplay}, {"rollback", kRollback}};
  for (const auto& [name, policy] : kPolicies) {
    if (name == value) return policy;
  }
  fail("{} = \"{}\": wanted off, warn, stop, skip, replay or rollback", key, value);
}

void RecentValues::add(double value) {
  if (values_.size() < kKept) {
    values_.push_back(value);
    return;
  }
  values_[next_] = value;
  next_ = (next_ + 1) % kKept;
}

double RecentValues::quantile(double q) const {
  if (values_.empty()) return 0.0;
  std::vector<double> sorted = values_;
  const auto at = sorted.begin() +
                  static_cast<std::ptrdiff_t>(q * static_cast<double>(sorted.size() - 1) + 0.5);
  std::nth_element(sorted.begin(), at, sorted.end());
  return *at;
}

double RecentValues::limit() const {
  if (values_.size() < kLeast || factor_ <= 0.0) return std::numeric_limits<double>::infinity();
  const double middle = quantile(0.5);
  const double spread = std::max(quantile(0.9) - quantile(0.1), 0.1 * std::abs(middle));
  return middle + factor_ * spread;
}

BadStepPolicy StepGuard::policy(StepFault fault) const {
  if (fault == StepFault::kNone) return BadStepPolicy::kOff;
  if (fault == StepFault::kLossSpike && o_.limits_norm()) return BadStepPolicy::kWarn;
  return fault == StepFault::kNonFinite ? o_.on_nonfinite : o_.on_spike;
}

StepFault StepGuard::judge(double loss, double norm, double norm_limit) {
  if (!std::isfinite(loss) || !std::isfinite(norm)) return StepFault::kNonFinite;
  if (o_.on_spike != BadStepPolicy::kOff) {
    if (norm > (o_.limits_norm() ? norm_limit : norms_.limit())) return StepFault::kNormSpike;
    if (loss > losses_.limit()) return StepFault::kLossSpike;
  }
  accept(loss, norm);
  return StepFault::kNone;
}

void StepGuard::accept(double loss, double norm) {
  losses_.add(loss);
  norms_.add(norm);
}

std::string StepGuard::describe(StepFault fault, double loss, double norm) const {
  switch (fault) {
    case StepFault::kNone:
      return "nothing";
    case StepFault::kNonFinite:
      return fmt::format("loss {}, gradient norm {}", std::isnan(loss) ? std::abs(loss) : loss,
                         std::isnan(norm) ? std::abs(norm) : norm);
    case StepFault::kNormSpike:
      return fmt::format("gradient norm {:.4g} where the median of recent steps is {:.4g}", norm,
                         norms_.median());
    case StepFault::kLossSpike:
      return fmt::format("loss {:.4g} where the median of recent steps is {:.4g}", loss,
                         losses_.median());
  }
  TOK_CHECK(false);
}

}  // namespace tokamak
