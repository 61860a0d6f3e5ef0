// A test tool that runs ranks as threads of one process, so that many-rank meshes run under
// sanitizers. Sends are rendezvous: a send returns when its bytes have been received.
#pragma once

#include <chrono>
#include <functional>

#include "tokamak/comm/communicator.h"

namespace tokamak {

struct ThreadWorldOptions {
  /// A wait longer than this ends the job with the last collective that each rank entered.
  std::chrono::milliseconds timeout{60'000};
};

/// Runs `body` on `num_ranks` threads, each with its World, and joins them. When a rank throws,
/// enters another call than its group, waits for a rank that has returned, or waits too long, all
/// others that wait or begin to wait are woken with a SystemError. The first error is rethrown.
void run_ranks(int num_ranks, const std::function<void(World& world)>& body,
               ThreadWorldOptions options = {});

}  // namespace tokamak
