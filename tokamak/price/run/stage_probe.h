// What one layer, the embedding and the head cost a rank, read from the plan of a small relative of
// the model: the same widths, few layers. Estimates of steps are made of it
// (price/step/stage_costs.h).
#pragma once

#include "tokamak/price/step/stage_costs.h"
#include "tokamak/price/task/task_time.h"
#include "tokamak/run/planned_run.h"

namespace tokamak {

/// Of parameters and what is kept of them.
price::ElementBytes element_bytes(const TrainingGraphOptions& training);

/// A stage of a pipeline, for the microbatch, sequence, recompute policy and the cp and tp degrees
/// of `shape`; other degrees and the schedule are not looked at. `split`: input and weight
/// gradients apart. Of each way in which
/// such stages of `num_gpus` ranks lie in the fabric. Throws Error where the mesh leaves a rank
/// without a head, a row or a token.
price::StageCosts probe_stages(const ModelSpec& spec, const RunShape& shape, bool split,
                               const Target& target, const price::Machine& machine,
                               const price::PriceOptions& options, int64_t num_gpus);

/// Seconds of a step without a pipeline: a line through the prices of two plans of few layers.
double flat_seconds(const ModelSpec& spec, const RunShape& shape, const Target& target,
                    const price::Machine& machine, const price::PriceOptions& options);

}  // namespace tokamak
