// What a run must know of its tokens before the first step.
#pragma once

#include "tokamak/comm/communicator.h"
#include "tokamak/train/trainer.h"

namespace tokamak {

/// Returns `options` with the number of steps. Shuffling deals the windows of a whole epoch, and a
/// length in epochs counts them, so text is then tokenized here, with lines that say how far it is.
/// The ranks that share a cache folder have one writer; the others wait for it. Collective; throws
/// alike on all ranks.
TrainerOptions with_tokens(const TrainerOptions& options, World& world);

}  // namespace tokamak
