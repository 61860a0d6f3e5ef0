#include "tokamak/train/step_plans.h"

#include <algorithm>
#include <string>

#include "tokamak/train/state/pieces.h"

namespace tokamak {

StepPlans::StepPlans(const PlannedRun& run, const Memory& memory, const StateAccess& access,
                     std::span<Communicator* const> groups, World* world)
    : run_(run), access_(access), world_(world) {
  const auto bound = [&](const Plan& plan) {
    return std::unique_ptr<Bound>(
        new Bound{.plan = plan,
                  .executor = Executor(plan, memory, groups, world),
                  .writes_saved = segments_that_write(plan, run.layout(), run.pieces())});
  };
  steady_ = bound(run.plan());
  if (run.plan_without_scales() != nullptr) without_scales_ = bound(*run.plan_without_scales());
}

void StepPlans::warm_up(int num_microbatches) {
  for (Bound* bound : {steady_.get(), without_scales_.get()}) {
    if (bound != nullptr) bound->executor.warm_up(bound->plan.schedule(num_microbatches));
  }
}

StepPlans::Bound& StepPlans::choose() {
  if (!without_scales_ || has_scales_) return *steady_;
  settle();
  has_scales_ = finds_scales();
  if (world_ != nullptr && world_->size() > 1) {
    const std::vector<std::string> all = world_->all_gather_text(has_scales_ ? "1" : "0");
    has_scales_ = std::ranges::all_of(all, [](const auto& text) { return text == "1"; });
  }
  return has_scales_ ? *steady_ : *without_scales_;
}

bool StepPlans::finds_scales() const {
  std::vector<float> table;
  for (const TensorPiece& row : run_.pieces()) {
    if (!row.is_delayed_scale) continue;
    if (table.empty()) table = access_.read<float>(row.state);
    if (!(table[static_cast<size_t>(row.offset)] > 0.0F)) return false;
  }
  return true;
}

void StepPlans::settle() {
  steady_->executor.settle();
  if (without_scales_) without_scales_->executor.settle();
}

void StepPlans::time_phases(PhaseTimes* seconds) {
  steady_->executor.time_phases(seconds);
  if (without_scales_) without_scales_->executor.time_phases(seconds);
}

double StepPlans::exposed_comm_s() const {
  return steady_->executor.exposed_comm_s() +
         (without_scales_ ? without_scales_->executor.exposed_comm_s() : 0.0);
}

}  // namespace tokamak
