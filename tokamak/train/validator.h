// Measures the loss on validation data from time to time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "tokamak/comm/communicator.h"
#include "tokamak/data/loader.h"
#include "tokamak/exec/executor.h"
#include "tokamak/run/planned_run.h"
#include "tokamak/train/loss_sum.h"
#include "tokamak/train/report/run_log.h"

namespace tokamak {

struct ValidationOptions {
  DataOptions data;   ///< its global batch is one batch of every data-parallel rank
  int64_t freq = 10;  ///< steps between validations; also after step 1
};

class Validator {
 public:
  /// Everything given must outlive it.
  Validator(const ValidationOptions& options, const PlannedRun& run, const StateAccess& access,
            Executor& executor, Loader& loader, World& world);

  bool is_due(int64_t step) const { return step == 1 || step % o_.freq == 0; }

  /// Measures the loss after `step`, logs and returns it, unless `stop` ends it: all ranks call
  /// `stop` between batches, and it must return the same on all. Collective.
  std::optional<double> run(int64_t step, const std::function<bool()>& stop, RunLog& log);

 private:
  const ValidationOptions& o_;
  const Mesh& mesh_;
  LossSum loss_;
  Loader& loader_;
  World& world_;
};

}  // namespace tokamak
