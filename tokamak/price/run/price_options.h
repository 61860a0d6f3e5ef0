// What a price must know of a run besides its plans.
#pragma once

#include "tokamak/config/check.h"
#include "tokamak/config/config.h"
#include "tokamak/models/model_spec.h"
#include "tokamak/price/machine/machine.h"
#include "tokamak/price/task/task_time.h"

namespace tokamak {

/// Of a run with products of blocks in `linear`: whether the runtime would gather by copy engines
/// (exec/gathered_memory.h), as parallelism.copy_engine_all_gather says and where it can.
price::PriceOptions price_options(const Config& config, const ModelSpec& model,
                                  const Degrees& degrees, const price::Machine& machine,
                                  price::Precision linear);

}  // namespace tokamak
