// What one layer, the embedding and the head cost a rank, read from the plan of a small relative of
// the model with the same widths and few layers. Estimates of steps use these costs
// (price/step/stage_costs.h).
#pragma once

#include "tokamak/price/step/stage_costs.h"
#include "tokamak/price/task/task_time.h"
#include "tokamak/run/planned_run.h"

namespace tokamak {

/// Returns the bytes of an element of parameters and of their moments, gradients and copies.
price::ElementBytes element_bytes(const RunShape& shape);

/// Returns the costs of a pipeline stage, for the microbatch, sequence, recompute policy and the cp
/// and tp degrees of `shape`; other degrees and the schedule do not matter. With `split`, input and
/// weight gradients are separate. Covers each position in the fabric that such stages of `num_gpus`
/// ranks take. Throws Error if the mesh leaves a rank without a head, a row or a token.
price::StageCosts probe_stages(const ModelSpec& spec, const RunShape& shape, bool split,
                               const Target& target, const price::Machine& machine,
                               const price::PriceOptions& options, int64_t num_gpus);

/// Returns seconds of a step without a pipeline, from a line through the prices of two plans of few
/// layers.
double flat_seconds(const ModelSpec& spec, const RunShape& shape, const Target& target,
                    const price::Machine& machine, const price::PriceOptions& options);

}  // namespace tokamak
