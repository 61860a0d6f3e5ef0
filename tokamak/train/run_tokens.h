// What a run must know of its tokens before the first step.
#pragma once

#include <chrono>

#include "tokamak/comm/communicator.h"
#include "tokamak/comm/flight.h"
#include "tokamak/data/loader.h"
#include "tokamak/train/trainer.h"

namespace tokamak {

/// Returns `options` with the number of steps. Shuffling deals the windows of a whole epoch, and a
/// length in epochs counts them, so text is then tokenized here, with lines that say how far it is.
/// The ranks that share a cache folder have one writer; the others wait for it. Collective; throws
/// alike on all ranks.
TrainerOptions with_tokens(const TrainerOptions& options, World& world);

/// Waits for the loader's next batch for `most` at most; returns whether it arrived. Tells the
/// watchdog while the tokens are being made, be it by another process.
bool await_batch(Loader& loader, std::chrono::milliseconds most, FlightPage& page);

}  // namespace tokamak
